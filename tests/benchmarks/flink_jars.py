"""Flink on this machine: its jars, pinned in ``flink_jars.json``, and the command that runs a file of SQL.

The newest sink for Elasticsearch 7 that we could get, 3.0.1, is built with a client whose answers from Elasticsearch 8
it cannot parse. The last client of version 7 can, in a mode of compatibility with version 7, but two of its classes are
in other packages. So the sink's jars get other names for these two, as a build with a relocation would give them.
After another version below, regenerate the pins: ``python -m tests.benchmarks.flink_jars``.
"""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
from dataclasses import asdict
from pathlib import Path

from syncer.sandbox.cache import Cache
from syncer.sandbox.downloads import Artifact, fetch, pin, resolve

VERSION, CDC_VERSION, SINK_VERSION = "1.20.3", "3.5.0", "3.0.1-1.17"
_CLIENT_VERSION = "7.17.29"
PINS = Path(__file__).with_name("flink_jars.json")
_SINK = "flink-connector-elasticsearch"
_FLINK = (
    *("clients", "sql-client", "sql-gateway", "python", "json", "connector-files"),
    *("table-planner-loader", "table-runtime", "table-api-java-bridge"),
)
ROOTS = (
    *(f"org.apache.flink:flink-{name}:{VERSION}" for name in _FLINK),
    f"org.apache.flink:flink-sql-connector-postgres-cdc:{CDC_VERSION}",
    f"org.apache.flink:{_SINK}7:{SINK_VERSION}",
    f"org.elasticsearch.client:elasticsearch-rest-high-level-client:{_CLIENT_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
_MOVED = {
    b"org/elasticsearch/common/unit/TimeValue": b"org/elasticsearch/core/TimeValue",
    b"org/elasticsearch/common/xcontent/XContentType": b"org/elasticsearch/xcontent/XContentType",
}


def java_command() -> list[str]:
    """Runs the statements of a file, its last argument, in one process, with a cluster of its own.

    The jars are downloaded on first use.
    """
    cache = Cache()
    class_path = ":".join(map(str, _jars(cache.folder)))
    options = f"@{PINS.with_name('flink.java')}"
    return [str(cache.java()), options, "-cp", class_path, "org.apache.flink.table.client.SqlClient", "embedded", "-f"]


def _jars(cache: Path) -> list[Path]:
    """The class path, downloaded and verified once."""
    folder = cache / f"flink-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    jars = []
    for pinned in json.loads(PINS.read_text()):
        artifact = Artifact(**pinned)
        file = fetch(artifact, folder)
        if _SINK in file.name:
            original, file = file, file.with_name(f"relocated-{file.name}")
            with zipfile.ZipFile(original) as jar_file, zipfile.ZipFile(file, "w") as copy:
                for member in jar_file.infolist():
                    content = jar_file.read(member)
                    copy.writestr(member, renamed(content) if member.filename.endswith(".class") else content)
        jars.append(file)
    return jars


def renamed(class_file: bytes) -> bytes:
    """The same class, which names the moved classes where they are now: each text follows a byte 1 and its length."""
    names = b"|".join(_MOVED)
    texts = list(re.finditer(rb"(?=\x01(..)([ -~]*(?:" + names + rb")[ -~]*))", class_file, re.DOTALL))
    for found in reversed(texts):
        text = found[2]
        if int.from_bytes(found[1]) == len(text):  # otherwise this byte 1 is something else
            for old_package, new_package in _MOVED.items():
                text = text.replace(old_package, new_package)
            head = class_file[: found.start(1)] + len(text).to_bytes(2)
            class_file = head + text + class_file[found.end(2) :]
    return class_file


def main() -> None:
    """Resolve and download everything, and rewrite the pins."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pins = [asdict(pin(coordinate, folder)) for coordinate in resolve(ROOTS, folder)]
    PINS.write_text("[\n" + ",\n".join(map(json.dumps, pins)) + "\n]\n")


if __name__ == "__main__":
    main()
