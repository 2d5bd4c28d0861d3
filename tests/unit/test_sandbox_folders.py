"""Which folders a sandbox chooses, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from syncer.base.errors import SandboxError
from syncer.sandbox.account import SYSTEM_CACHE_FOLDER, Account, cache_folder, choose, make_open_folder, server_account

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT, FALLBACK = Path("/default"), Path("/fallback")


class Stranger(Account):
    """An account that can enter nothing."""

    __slots__ = ()

    def can_enter(self, folder: Path) -> bool:
        """Never."""
        del folder
        return False


@pytest.fixture
def _umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_named_folder_is_taken(tmp_path: Path) -> None:
    """What the caller names comes first."""
    assert choose(tmp_path, DEFAULT, FALLBACK, Account()) == tmp_path


def test_named_folder_that_servers_cannot_enter_is_refused(tmp_path: Path) -> None:
    """A named folder is not silently replaced by another."""
    with pytest.raises(SandboxError, match="cannot look into") as raised:
        choose(tmp_path, DEFAULT, FALLBACK, Stranger())
    assert "/var/tmp" in raised.value.hint  # noqa: S108


def test_default_folder_that_servers_cannot_enter_is_replaced() -> None:
    """Nobody asked for the default, so it gives way."""
    assert choose(None, DEFAULT, FALLBACK, Account()) == DEFAULT
    assert choose(None, DEFAULT, FALLBACK, Stranger()) == FALLBACK


def test_cache_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SYNCER_CACHE_DIR names the cache; empty, it names nothing."""
    monkeypatch.setenv("SYNCER_CACHE_DIR", str(tmp_path / "cache"))
    assert cache_folder(Account()) == tmp_path / "cache"
    monkeypatch.setenv("SYNCER_CACHE_DIR", "")
    assert cache_folder(Stranger()) == SYSTEM_CACHE_FOLDER


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a server as somebody else")
def test_kernel_decides_what_nobody_can_enter(tmp_path: Path) -> None:
    """A private folder, and all that would lie in it, is closed; an open one is not."""
    private, account = tmp_path / "private", server_account()
    private.mkdir(mode=0o700)
    assert not account.can_enter(private / "not" / "yet" / "there")
    assert account.can_enter(Path("/") / "not" / "yet" / "there")


@pytest.mark.usefixtures("_umask")
def test_new_folders_are_open_and_old_ones_stay_as_they_are(tmp_path: Path) -> None:
    """The umask does not close what the sandbox makes; what it finds, it leaves."""
    old = tmp_path / "old"
    old.mkdir()
    make_open_folder(old / "new" / "newer")
    modes = [path.stat().st_mode & 0o777 for path in (old, old / "new", old / "new" / "newer")]
    assert modes == [0o700, 0o755, 0o755]
