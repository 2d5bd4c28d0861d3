"""The account that the servers run as, and the folders for cache and state.

Postgres and Elasticsearch refuse to run as root, so root starts them as ``nobody``. That account exists everywhere, but
cannot enter folders such as root's home.

A folder is chosen in this order: the one named by the caller or SYNCER_CACHE_DIR; the user's own; if the account cannot
enter it, a system folder. A named folder is never replaced: if the servers cannot use it, that is an error.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from syncer.base.errors import SandboxError


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user and group for servers; without them, the current user."""

    uid: int | None = None
    gid: int | None = None

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

    def write(self, file: Path, content: str) -> None:
        """Write a file that belongs to this account and that all can read."""
        file.write_text(content, encoding="utf-8")
        file.chmod(0o644)
        self._give(file)

    def _give(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def server_account() -> Account:
    """Return the account for the servers of this process."""
    if os.geteuid() != 0:
        return Account()
    nobody = pwd.getpwnam("nobody")
    return Account(uid=nobody.pw_uid, gid=nobody.pw_gid)


def make_open_folder(folder: Path) -> None:
    """Create a folder and its missing parents, which all users can enter, whatever the umask.

    Existing folders are left unchanged.
    """
    for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)


def cache_folder(account: Account) -> Path:
    """Return the folder of downloads, shared by all sandboxes."""
    named = os.environ.get("SYNCER_CACHE_DIR")
    default = platformdirs.user_cache_path("syncer")
    return _choose(Path(named) if named else None, default, Path("/var/cache/syncer"), account)


def state_folder(named: Path | None, account: Account) -> Path:
    """Return the folder for data, logs and state of one sandbox."""
    default = platformdirs.user_state_path("syncer") / "sandbox"
    return _choose(named, default, Path("/var/lib/syncer/sandbox"), account)


def _choose(named: Path | None, default: Path, fallback: Path, account: Account) -> Path:
    if named is None:
        return default if account.can_enter(default) else fallback
    folder = named.expanduser().absolute()
    if not account.can_enter(folder):
        raise SandboxError(
            f"The servers run as an unprivileged user, which cannot enter {folder}",
            hint="Choose a folder that all users can enter, for example below /var/tmp, or do not run as root.",
        )
    return folder
