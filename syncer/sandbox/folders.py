"""Where the sandbox keeps its cache and its state.

Chosen in this order: what the caller or SYNCER_CACHE_DIR names; the user's own folder; and, if the servers
run as an account that cannot look into that one, a folder of the system. A named folder is never replaced by
another: if the servers cannot use it, that is an error. Permissions of existing folders are never changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from syncer.errors import SandboxError

if TYPE_CHECKING:
    from syncer.sandbox.account import Account

CACHE_VARIABLE = "SYNCER_CACHE_DIR"
SYSTEM_CACHE_FOLDER = Path("/var/cache/syncer")
SYSTEM_STATE_FOLDER = Path("/var/lib/syncer/sandbox")


def cache_folder(account: Account) -> Path:
    """Where downloads are kept, shared by all sandboxes."""
    named = os.environ.get(CACHE_VARIABLE)
    default = platformdirs.user_cache_path("syncer")
    return choose(Path(named) if named else None, default, SYSTEM_CACHE_FOLDER, account)


def state_folder(named: Path | None, account: Account) -> Path:
    """Where one sandbox keeps its data, logs and state."""
    default = platformdirs.user_state_path("syncer") / "sandbox"
    return choose(named, default, SYSTEM_STATE_FOLDER, account)


def choose(named: Path | None, default: Path, fallback: Path, account: Account) -> Path:
    """The named folder, or else the first of the others that the account can look into."""
    if named is None:
        return default if account.can_enter(default) else fallback
    folder = named.expanduser().absolute()
    if not account.can_enter(folder):
        raise SandboxError(
            f"The servers run as an unprivileged user, who cannot look into {folder}",
            hint="Choose a folder that all can look into, for example below /var/tmp, or do not run as root.",
        )
    return folder
