"""Verify and explain find drift of every kind and say why, cry no wolf, and fix what can be fixed."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import DefinitionError
from syncer.cli.verify import compared
from syncer.indexing import dead_letters
from syncer.indexing.dead_letters import Failure
from syncer.monitoring.status import ask_postgres
from syncer.verify import compare
from syncer.verify.diff import Cause, DriftKind
from syncer.verify.explain import InIndex, State, explain
from tests.faults.harness import following
from tests.support.routing import document, verified
from tests.support.world import NOT_PARSED, World

BLOG = """
INSERT INTO users (id, name, email) SELECT g, 'name ' || g, '' FROM generate_series(0, 5) AS g;
INSERT INTO posts (id, user_id, title, body) SELECT g, g % 6, 'title', '' FROM generate_series(0, 59) AS g;
INSERT INTO comments (id, post_id, name, comment) SELECT g, g % 60, 'c', 'x' FROM generate_series(0, 119) AS g
"""
FAR_AHEAD = 1 << 62


def filled(world: World) -> World:
    """Sixty posts with two comments each, in Postgres and in Elasticsearch."""
    world.sql(BLOG)
    fill(world)
    return world


@pytest.fixture
def blog(world: World) -> World:
    """A blog that a test may leave as it likes."""
    return filled(world)


@pytest.fixture(scope="module")
def shared_blog(shared_world: World) -> World:
    """One blog for each drift that a repair takes back."""
    return filled(shared_world)


def handled(world: World) -> None:
    """As if every change so far were handled."""
    world.sql("TRUNCATE syncer.outbox")


def fill(world: World) -> None:
    """What ``syncer backfill`` does, and what has come before is handled."""
    world.backfill()
    handled(world)
    world.sql("UPDATE syncer.document SET loaded_at = now()")
    # What somebody writes over the last version assigned can be told from syncer's own.
    with world.index() as index, world.writer(index) as writer:
        writer.write(world.index_of(), ["7"])
    with world.elasticsearch() as client:
        client.indices.refresh(index=world.alias)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many ranges and pages for few documents."""
    monkeypatch.setattr(compare, "PAGE", 7)
    monkeypatch.setattr(compare, "FIRST_ROWS", 7)


def source(client: Elasticsearch, world: World, id_: str = "7") -> dict[str, Any]:
    """A document as it is in the index."""
    source: dict[str, Any] = client.get(index=world.alias, id=id_).body["_source"]
    return source


# Planted by hand: kind, cause, the paths that differ, whether a repair fixes it

Plant = Callable[[Elasticsearch, World, dict[str, Any]], object]


def _overwrite(client: Elasticsearch, world: World, changed: dict[str, Any], number: int, *, id_: str = "7") -> None:
    client.index(index=world.alias, id=id_, document=changed, version=number, version_type="external")


def _put_raw(client: Elasticsearch, world: World, source: dict[str, Any]) -> None:
    json_ = {"accept": "application/json", "content-type": "application/json"}
    client.perform_request("PUT", f"/{world.alias}/_doc/7", headers=json_, body=json.dumps(source).encode())


def _comment(source: dict[str, Any]) -> dict[str, Any]:
    first, second = source["comments"]
    return source | {"comments": [first, second | {"comment": "other"}]}


def _stale(_: Elasticsearch, world: World, __: dict[str, Any]) -> None:
    world.sql("UPDATE posts SET title = 'new' WHERE id = 7")
    handled(world)


PLANTED: dict[str, tuple[str, DriftKind, Cause | None, tuple[str, ...], bool, Plant]] = {
    "missing": ("7", DriftKind.MISSING, None, (), True, lambda c, w, _: c.delete(index=w.alias, id="7")),
    "extra": (
        "99", DriftKind.EXTRA, Cause.FOREIGN, (), True, lambda c, w, s: c.index(index=w.alias, id="99", document=s),
    ),
    "stale": ("7", DriftKind.DIFFERENT, None, ("title",), True, _stale),
    "one_nested_field": (
        "7", DriftKind.DIFFERENT, Cause.FOREIGN, ("comments[1].comment",), True,
        lambda c, w, s: c.index(index=w.alias, id="7", document=_comment(s)),
    ),
    "half_a_character": (
        "7", DriftKind.DIFFERENT, Cause.FOREIGN, ("title",), True,
        lambda c, w, s: _put_raw(c, w, s | {"title": "\ud800"}),
    ),
    "routing": (
        "7", DriftKind.MISPLACED, Cause.FOREIGN, (), True,
        lambda c, w, s: (c.delete(index=w.alias, id="7"), c.index(index=w.alias, id="7", routing="x", document=s)),
    ),
    "huge_version": (
        "7", DriftKind.DIFFERENT, Cause.FOREIGN_AHEAD, ("title",), False,
        lambda c, w, s: _overwrite(c, w, s | {"title": "other"}, FAR_AHEAD),
    ),
    "huge_delete": (
        "7", DriftKind.MISSING, None, (), False,
        lambda c, w, _: c.delete(index=w.alias, id="7", version=FAR_AHEAD, version_type="external"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_drift_is_found_named_and_repaired(name: str, request: pytest.FixtureRequest) -> None:
    """Each kind: the document, how it differs, the field, and why. Then it is fixed, or still found as what it is."""
    id_, kind, cause, paths, is_fixed, plant = PLANTED[name]
    world: World = request.getfixturevalue("shared_blog" if is_fixed else "blog")
    with world.elasticsearch() as client:
        plant(client, world, source(client, world))
    (drift,) = verified(world).drifts
    assert (drift.id, drift.kind, drift.cause) == (id_, kind, cause)
    assert tuple(difference.path for difference in drift.differences) == paths
    report = verified(world, repair=True)
    assert report.holds is is_fixed
    assert [drift.id for drift in (report.repaired if is_fixed else report.drifts)] == [id_]
    assert verified(world).holds is is_fixed
    assert bool(world.differences()) is not is_fixed


def test_a_dead_letter_is_named(blog: World) -> None:
    """With its error; a repair tries it once more, and leaves it dead-lettered."""
    blog.sql("UPDATE posts SET created = 'infinity' WHERE id = 7")
    handled(blog)
    for _ in range(2):
        (drift,) = verified(blog, repair=True).drifts
        assert (drift.id, drift.cause) == ("7", Cause.DEAD_LETTERED)
        assert NOT_PARSED in (drift.error or "")
    blog.sql("UPDATE posts SET created = now() WHERE id = 7")
    assert verified(blog, repair=True).holds
    assert blog.sql("SELECT count(*) FROM syncer.dead_letter") == [(0,)]


SUMS = """
CREATE TABLE teams (id int PRIMARY KEY);
CREATE TABLE games (id int PRIMARY KEY, team int, score float8);
INSERT INTO teams SELECT g FROM generate_series(1, 3) AS g;
INSERT INTO games SELECT g, 1 + g % 3, 0.1 * (1 + g / 3) FROM generate_series(0, 8) AS g
"""


def test_a_rounded_sum_is_named_and_is_no_problem(empty_world: World) -> None:
    """A sum of doubles differs once rows lie in another order; a difference elsewhere, or a larger one, is drift."""
    world = empty_world
    world.use()
    sums = "SELECT {} FROM games AS g WHERE g.team = t.id"
    fields = f"({sums.format('sum(g.score)')}) AS total, ({sums.format('min(g.score)')}) AS least"
    world.define("team", f"SELECT t.id AS _id, {fields} FROM teams AS t", {"dynamic": True})
    world.sql(SUMS)
    world.migrate()
    assert "total: a sum of floating-point numbers" in world.syncer("plan").stdout
    world.apply()
    world.sql("UPDATE games SET score = score WHERE id < 3")  # as written before, and so no change
    printed = world.prints("verify", "team", code=1)
    assert "rounded" in printed
    assert "sum(c.score::numeric)" in printed
    assert world.sql("SELECT drifted FROM syncer.verification") == [(0,)]
    world.sql(
        "UPDATE games SET score = score + 0.000001 WHERE id = 0; UPDATE games SET score = 0.1 + 1e-17 WHERE id = 1"
    )
    handled(world)
    world.syncer("verify", "team")
    assert world.sql("SELECT drifted FROM syncer.verification") == [(1,)]


def test_no_extra_hides(blog: World, client: Elasticsearch) -> None:
    """Whatever their order, all are found; those that lack another document's place, too: totals prove nothing."""
    extras = {str(number) for number in range(1000, 1040)} | {"ghost", "007", "99999999999999999999"}
    for id_ in extras:
        client.index(index=blog.alias, id=id_, document={})
    client.delete(index=blog.alias, id="7")
    kinds = dict.fromkeys(extras, DriftKind.EXTRA) | {"7": DriftKind.MISSING}
    assert {drift.id: drift.kind for drift in verified(blog).drifts} == kinds
    assert verified(blog, repair=True).holds
    assert blog.differences() == []


# Beside live traffic


def test_what_does_not_move_is_not_judged(blog: World, client: Elasticsearch) -> None:
    """Whether it has drifted is undecided, unless no write replaces it; a repair writes it.

    The command says so, and has an exit code of its own for that.
    """
    blog.sql("UPDATE posts SET title = 'new' WHERE id = 7")
    printed = blog.prints("verify", code=3)
    assert "1 document is busy" in printed
    assert "Changes in flight make no progress" in printed
    assert blog.sql("SELECT count(*) FROM syncer.verification") == [(0,)]
    client.delete(index=blog.alias, id="8")
    _overwrite(client, blog, source(client, blog, "9") | {"title": "other"}, FAR_AHEAD, id_="9")
    for _ in range(2):
        report = verified(blog)
        assert [(drift.id, drift.cause) for drift in report.drifts] == [("9", Cause.FOREIGN_AHEAD)]
        assert ([drift.id for drift in report.busy], report.are_changes_handled) == (["7", "8"], False)
        with blog.relay() as relay:
            relay.run_once()
    report = verified(blog, repair=True)
    assert ({drift.id for drift in report.repaired}, report.busy) == ({"7", "8"}, [])


# Many


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than ten suspects at once."""
    monkeypatch.setattr(compare, "FOUND_MAX", 10)


@pytest.mark.usefixtures("few")
def test_a_comparison_ends_where_too_many_differ(blog: World, client: Elasticsearch) -> None:
    """It says so, whichever side they are on; each repair takes back so many."""
    client.delete_by_query(index=blog.alias, query={"match_all": {}}, refresh=True)
    report = verified(blog)
    assert (report.is_complete, report.holds) == (False, False)
    assert 10 <= len(report.drifts) < 60
    fill(blog)
    for number in range(1000, 1030):
        client.index(index=blog.alias, id=str(number), document={})
    report = verified(blog)
    assert not report.is_complete
    assert {drift.kind for drift in report.drifts} == {DriftKind.EXTRA}
    rounds = 1
    while not (report := verified(blog, repair=True)).is_complete:
        assert (10 <= len(report.repaired) < 20, report.drifts) == (True, [])
        rounds += 1
    assert rounds == 3
    assert blog.differences() == []


@pytest.mark.usefixtures("few")
def test_more_suspects_than_fit_are_settled_on_the_way(blog: World, client: Elasticsearch) -> None:
    """All documents change while they are compared, and the last one has drifted."""
    client.indices.put_settings(index=blog.alias, settings={"index.refresh_interval": -1})
    client.delete(index=blog.alias, id="59")
    repaired: list[int] = []

    def change(documents: int, _: int) -> None:
        if not repaired:
            blog.sql("UPDATE posts SET title = 'new ' || id WHERE id < 59")
            with blog.index() as index, blog.writer(index) as writer:
                writer.write(blog.index_of(), [str(id_) for id_ in range(59)])
            handled(blog)
        repaired.append(documents)

    report = verified(blog, progress=change)
    assert ([drift.id for drift in report.drifts], report.is_complete) == (["59"], True)


def test_no_snapshot_lasts_longer_than_a_range(blog: World) -> None:
    """Between two ranges, verify has no transaction open: a table of any size keeps vacuum from nothing."""
    blog.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 't', '' FROM generate_series(100, 299) AS g")
    fill(blog)
    open_: list[set[str]] = []

    def look(*_: int) -> None:
        rows = blog.sql(
            "SELECT xact_start::text FROM pg_stat_activity WHERE datname = %s AND application_name = 'syncer test'",
            blog.name,
        )
        open_.append({began for (began,) in rows if began is not None})

    assert verified(blog, progress=look).holds
    assert len(open_) > 10
    assert not any(earlier & later for earlier, later in pairwise(open_))


# What is applied meanwhile


def test_what_is_applied_meanwhile_is_no_drift(blog: World, client: Elasticsearch) -> None:
    """Documents are compared with the definition that is active in the end; so is what is noted."""
    earlier = document(blog)
    blog.edit_file("p.title,", "upper(p.title) AS title,")
    blog.apply()
    with blog.connect() as connection:
        servers = blog.parts(connection, client)
        report = compared(servers, earlier)
        assert (report.holds, report.documents) == (True, 60)
        assert [verification.drifted for verification in ask_postgres(connection).verifications] == [0]


# Explain


def explained(world: World, id_: str = "2", *, seconds: float = 60) -> InIndex:
    """What syncer explains of one post."""
    with world.connect() as connection, world.index() as index:
        (explained_index,) = explain(connection, index, "blogpost", id_, seconds=seconds).indices
    return explained_index


def test_a_change_is_followed_from_the_outbox_to_the_index(blog: World) -> None:
    """In the outbox, in the topic, handled: the document is busy until then."""
    blog.sql("UPDATE users SET name = 'J. Smith' WHERE id = 2")
    state = explained(blog, seconds=0)
    assert (state.state, state.says) == (State.BUSY, "Different; earlier changes are not handled.")
    assert [difference.path for difference in state.differences] == ["user.name"]
    assert explained(blog, "4").state is State.EQUAL
    with blog.relay() as relay:
        relay.run_once()
        assert explained(blog, seconds=0).state is State.BUSY
    with following(blog) as follower:
        follower.handle()
    assert explained(blog).state is State.EQUAL
    assert blog.prints("explain", "blogpost", "2").startswith("Equal to its SELECT.\n")


def test_what_differs_with_nothing_on_its_way_can_be_repaired(blog: World, client: Elasticsearch) -> None:
    """A lost write; a version that syncer never reaches needs a new index. Kafka is not asked."""
    client.delete(index=blog.alias, id="2")
    client.index(index=blog.alias, id="4", document={}, version=FAR_AHEAD, version_type="external")
    lost, ahead = explained(blog), explained(blog, "4")
    assert (lost.state, "Missing from the index" in lost.says) == (State.DIFFERENT, True)
    assert (ahead.state, "syncer index rebuild blogpost" in ahead.hint) == (State.DIFFERENT, True)
    without_kafka = {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    printed = blog.prints("explain", "blogpost", "2", code=1, environment=without_kafka)
    assert "syncer verify blogpost --repair" in printed


def test_a_suspended_document_is_read_as_far_as_it_can_be(blog: World) -> None:
    """Both sides, if its index is at fault; if its tables are, what Elasticsearch has; nothing of a closed index."""
    blog.sql(r"UPDATE syncer.document SET suspended = E'its index is blocked\nlift the block'")
    blog.sql("UPDATE posts SET title = 'new' WHERE id = 4")
    state = explained(blog, "4")
    assert (state.state, state.says) == (State.UNKNOWN, f"{blog.index_of()} is suspended: its index is blocked.")
    assert state.elasticsearch
    assert [difference.path for difference in state.differences] == ["title"]
    blog.sql("ALTER TABLE posts RENAME title TO heading")
    state = explained(blog, "4")
    assert (state.postgres.exists, state.differences, len(state.elasticsearch or ())) == (None, (), 1)
    with blog.connect() as connection:
        dead_letters.dead_letter(connection, blog.index_of(), 1, {"4": Failure(kind="any", error="because")})
    state = explained(blog, "4")
    assert (state.dead_letter is not None, "is suspended" in state.says) == (True, True)
    with blog.elasticsearch() as client:
        client.indices.close(index=blog.index_of(), wait_for_active_shards=0)
    assert explained(blog, "4").elasticsearch is None


def test_bad_input_is_explained(blog: World) -> None:
    """An unknown document, letters for a number, another spelling of a number, nothing, far too much."""
    for id_ in ("abc", "99999999999999999999", "007"):
        state = explained(blog, id_)
        assert (state.state, "bigint" in state.says) == (State.ABSENT, True)
    for id_ in ("", "x" * 513):
        with pytest.raises(DefinitionError, match="1 to 512 bytes"):
            explained(blog, id_)
    assert "Active documents: blogpost" in blog.syncer("explain", "blogspot", "2").stderr
