"""Whom the servers run as. Postgres and Elasticsearch refuse root, so root starts them as ``nobody``.

``nobody`` has an entry everywhere, so that no account need be made; but it cannot look into folders such as
root's home, which is why everything the servers touch is checked with `Account.can_enter`.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user and group for servers, or, with neither, whoever runs this program."""

    uid: int | None = None
    gid: int | None = None

    def popen_arguments(self) -> dict[str, Any]:
        """What makes `subprocess` start a command as this account."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_enter(self, folder: Path) -> bool:
        """Whether this account can look into a folder; if it does not exist yet, into what it will lie in.

        The kernel is asked, not the mode bits, so that access lists and read-only mounts count too.
        """
        while not os.access(folder, os.F_OK):
            folder = folder.parent
        command = ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)]
        entered = subprocess.run(command, check=False, stderr=subprocess.DEVNULL, **self.popen_arguments())
        return entered.returncode == 0

    def own(self, folder: Path) -> None:
        """Make a folder, open to look into, that belongs to this account."""
        make_open_folder(folder)
        self._give(folder)

    def write(self, file: Path, content: str) -> None:
        """Write a file that belongs to this account and that all can read."""
        file.write_text(content, encoding="utf-8")
        file.chmod(0o644)
        self._give(file)

    def _give(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None and path.stat().st_uid != self.uid:
            os.chown(path, self.uid, self.gid)


def server_account() -> Account:
    """Whom the servers of this process run as."""
    if os.geteuid() != 0:
        return Account()
    nobody = pwd.getpwnam("nobody")
    return Account(uid=nobody.pw_uid, gid=nobody.pw_gid)


def make_open_folder(folder: Path) -> None:
    """Make a folder and what it lies in. What is made can be looked into by all, whatever the umask.

    What exists already is left as it is.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
