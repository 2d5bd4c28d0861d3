"""Verify finds drift of every kind and says why, cries no wolf, and fixes what can be fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.cli.verify import compared
from syncer.monitoring.status import ask_postgres
from syncer.verify import compare
from syncer.verify.diff import Cause, DriftKind
from tests.support.routing import document, put, put_shards, verified
from tests.support.world import World

USERS = "INSERT INTO users (id, name, email) SELECT g, 'name ' || g, '' FROM generate_series(0, 5) AS g"
POSTS = "INSERT INTO posts (id, user_id, title, body) SELECT g, g % 6, 'title', '' FROM generate_series(0, 59) AS g"
COMMENTS = (
    "INSERT INTO comments (id, post_id, name, comment) SELECT g, g % 60, 'c', 'x' FROM generate_series(0, 119) AS g"
)
FAR_AHEAD = 1 << 62


@pytest.fixture
def blog(world: World) -> World:
    """Sixty posts with two comments each, in Postgres and in Elasticsearch."""
    return filled(world)


def filled(world: World) -> World:
    """A world with these posts."""
    world.sql(f"{USERS}; {POSTS}; {COMMENTS}")
    fill(world)
    return world


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


@pytest.fixture
def client(world: World) -> Iterator[Elasticsearch]:
    """Somebody else's client."""
    with world.elasticsearch() as made:
        yield made


def source(client: Elasticsearch, world: World, id_: str = "7") -> dict[str, Any]:
    """A document as it is in the index."""
    found: dict[str, Any] = client.get(index=world.alias, id=id_).body["_source"]
    return found


# Planted by hand: kind, cause, the paths that differ, whether a repair fixes it

Plant = Callable[[Elasticsearch, World, dict[str, Any]], object]


def _overwrite(client: Elasticsearch, world: World, changed: dict[str, Any], number: int, *, id_: str = "7") -> None:
    client.index(index=world.alias, id=id_, document=changed, version=number, version_type="external")


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


@pytest.fixture(scope="module")
def shared_blog(shared_world: World) -> World:
    """The same sixty posts for each drift that a repair takes back."""
    return filled(shared_world)


@pytest.mark.parametrize("name", PLANTED)
def test_drift_is_found_named_and_repaired(name: str, request: pytest.FixtureRequest) -> None:
    """Each kind: the document, how it differs, the field, and why. Then it is fixed, or still found as what it is."""
    id_, kind, cause, paths, is_fixed, plant = PLANTED[name]
    world: World = request.getfixturevalue("shared_blog" if is_fixed else "blog")
    with world.elasticsearch() as client:
        plant(client, world, source(client, world))
    (found,) = verified(world).drifts
    assert (found.id, found.kind, found.cause) == (id_, kind, cause)
    assert tuple(difference.path for difference in found.differences) == paths
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
        (found,) = verified(blog, repair=True).drifts
        assert (found.id, found.cause) == ("7", Cause.DEAD_LETTERED)
        assert "document_parsing_exception" in (found.error or "")
    blog.sql("UPDATE posts SET created = now() WHERE id = 7")
    assert verified(blog, repair=True).holds
    assert blog.sql("SELECT count(*) FROM syncer.dead_letter") == [(0,)]


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


def test_copies_on_every_shard_are_found_and_removed(empty_world: World) -> None:
    """Where somebody else put copies of one that is there, and of one that is not, whatever led to them."""
    put_shards(empty_world, 3)
    empty_world.set_up()
    empty_world.sql(USERS)
    empty_world.sql(POSTS)
    fill(empty_world)
    with empty_world.elasticsearch() as client:
        found = source(client, empty_world)
        for routing in map(str, range(10)):
            put(client, empty_world, "7", routing, found)
            put(client, empty_world, "99", routing, found)
    report = verified(empty_world, repair=True)
    assert {drift.id: drift.kind for drift in report.repaired} == {"7": DriftKind.MISPLACED, "99": DriftKind.EXTRA}
    assert report.holds
    assert empty_world.differences() == []


# Beside live traffic


def test_what_does_not_move_is_not_judged(blog: World, client: Elasticsearch) -> None:
    """Whether it has drifted is undecided, unless no write replaces it; a repair writes it."""
    blog.sql("UPDATE posts SET title = 'new' WHERE id = 7")
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


def test_the_command_says_what_it_cannot_judge(blog: World, client: Elasticsearch) -> None:
    """And has an exit code of its own for that."""
    blog.sql("UPDATE posts SET title = 'new' WHERE id = 7")
    ended = blog.syncer("verify")
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "1 document is busy" in ended.stdout
    assert "Changes in flight make no progress" in ended.stdout
    assert blog.sql("SELECT count(*) FROM syncer.verification") == [(0,)]
    client.delete(index=blog.alias, id="8")
    handled(blog)
    ended = blog.syncer("verify", "--repair")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 documents are repaired" in ended.stdout
    assert blog.sql("SELECT kind, state FROM syncer.job ORDER BY id DESC LIMIT 1") == [("partial", "done")]
    assert blog.differences() == []


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
    done: list[int] = []

    def change(documents: int) -> None:
        if not done:
            blog.sql("UPDATE posts SET title = 'new ' || id WHERE id < 59")
            with blog.index() as index, blog.writer(index) as writer:
                writer.write(blog.index_of(), [str(id_) for id_ in range(59)])
            handled(blog)
        done.append(documents)

    report = verified(blog, progress=change)
    assert ([drift.id for drift in report.drifts], report.is_complete) == (["59"], True)


def test_no_snapshot_lasts_longer_than_a_range(blog: World) -> None:
    """Between two ranges, verify has no transaction open: a table of any size keeps vacuum from nothing."""
    blog.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 't', '' FROM generate_series(100, 299) AS g")
    fill(blog)
    open_: list[set[str]] = []

    def look(_: int) -> None:
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
    before = document(blog)
    select = blog.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.title,", "upper(p.title) AS title,"))
    blog.apply()
    with blog.connect() as connection:
        parts = blog.parts(connection, client)
        report = compared(parts, before, settle_seconds=0)
        assert (report.holds, report.documents) == (True, 60)
        assert [last.drifted for last in ask_postgres(connection).verifications] == [0]
