"""Verify beside concurrent writers and a daemon: it cries no wolf, and sees the one that is there."""

from __future__ import annotations

import time

import pytest

from syncer.verify import compare
from syncer.verify.compare import VerifyReport, verify
from syncer.verify.diff import Cause, DriftKind
from tests.support.routing import document
from tests.support.world import World
from tests.support.writers import SECONDS, fill, writing

FAR_AHEAD = 1 << 62
HELD_UP_SECONDS = 30.0
"""For how long a busy machine may keep a change from its document, which is no drift."""
PLANTED_SECONDS = 5.0
"""The same, for the few documents that are looked at here."""


def run(world: World, *, repair: bool = False, settle_seconds: float = HELD_UP_SECONDS) -> VerifyReport:
    """Verify in small ranges, so that much happens between them."""
    with world.index() as index, world.writer(index) as writer:
        return verify(
            world.connect,
            document(world),
            index=index,
            settle_seconds=settle_seconds,
            repair=(lambda ids: writer.write(world.index_of(), ids, everywhere=True)) if repair else None,
        )


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many ranges and pages."""
    monkeypatch.setattr(compare, "_PAGE", 7)
    monkeypatch.setattr(compare, "_FIRST_ROWS", 7)


def test_what_is_in_flight_is_never_drift(world: World) -> None:
    """Again and again, while everything changes on both sides, nothing is called drift."""
    fill(world)
    world.daemon()
    deadline = time.monotonic() + SECONDS
    with writing(world):
        while time.monotonic() < deadline:
            report = run(world)
            assert not report.has_drifted, report
    world.wait_until_level()
    assert run(world).holds


def test_planted_drift_is_found_and_fixed_beside_writers(world: World) -> None:
    """Just what was planted, with its cause; a repair fixes what can be, and weakens nothing of what goes on."""
    fill(world)
    world.sql("INSERT INTO users (id, name, email) VALUES (100, 'whom nobody renames', '')")
    world.sql(
        "INSERT INTO posts (id, user_id, title, body) SELECT g, 100, 't', '' FROM generate_series(1001, 1004) AS g"
    )
    world.daemon()
    world.wait_until_level()
    with writing(world), world.elasticsearch() as client:
        held = client.get(index=world.alias, id="1001").body["_source"]
        client.delete(index=world.alias, id="1001")
        client.index(index=world.alias, id="1002", document=held | {"user": {**held["user"], "id": 99}})
        foreign = held | {"title": "other"}
        client.index(index=world.alias, id="1003", document=foreign, version=FAR_AHEAD, version_type="external")
        client.index(index=world.alias, id="2000", document=held)
        planted = {
            "1001": (DriftKind.MISSING, None),
            "1002": (DriftKind.DIFFERENT, Cause.FOREIGN),
            "1003": (DriftKind.DIFFERENT, Cause.FOREIGN_AHEAD),
            "2000": (DriftKind.EXTRA, Cause.FOREIGN),
        }
        report = run(world, settle_seconds=PLANTED_SECONDS)  # it stays so for that long
        assert {one.id: (one.kind, one.cause) for one in report.drifts} == planted
        report = run(world, repair=True, settle_seconds=PLANTED_SECONDS)
        assert [one.id for one in report.drifts] == ["1003"]
        assert {one.id for one in report.repaired} == {"1001", "1002", "2000"}
        client.delete(index=world.alias, id="1003", version=FAR_AHEAD + 1, version_type="external")
        world.sql("DELETE FROM posts WHERE id = 1003")
    world.wait_until_level()
    assert run(world).holds
