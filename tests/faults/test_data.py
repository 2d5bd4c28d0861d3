"""Rows that cannot be read, followed or written, and values that are large, deep or odd: all others continue."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs

from syncer.capture import triggers
from syncer.documents import registry
from syncer.indexing import compose, dead_letters, writer
from syncer.jobs import listing, queue
from syncer.jobs.model import JobKind, JobState, find, unfinished
from syncer.verify.compare import verify
from syncer.verify.diff import DriftKind
from tests.faults import harness
from tests.faults.harness import DEAD_LETTERS, POSTS, SUSPENDED, USER, require_holds
from tests.support.breakpoints import Plan
from tests.support.capture import install, written
from tests.support.world import BLOG_SCHEMA, NOT_PARSED, World, wait_until


def letters(world: World) -> dict[str, str]:
    """Which documents are dead-lettered, of the index that searches use, and the kind of error."""
    rows = world.sql(
        "SELECT id, kind FROM syncer.dead_letter JOIN syncer.document USING (index_name) WHERE role = 'current'"
    )
    return dict(rows)


def define_each(world: World, selects: Iterable[str], **affects: str) -> None:
    """A document of each SELECT, named 0, 1 and so on, and no other; one has affects queries if it is grouped."""
    shutil.rmtree(world.document_folder)
    world.documents = ()
    for number, select in enumerate(selects):
        world.define(f"d{number}", select, None, **(affects if "GROUP BY" in select else {}))
        world.documents += (f"d{number}",)


@pytest.fixture
def dividing(empty_world: World) -> World:
    """A world whose SELECT raises for a post that has been seen 13 times."""
    empty_world.edit_file("p.body,", "p.body, 100 / (p.views - 13) AS ratio,")
    empty_world.edit_file('"strict"', "true", file="index.json")
    empty_world.set_up()
    return empty_world


# Many at once


def test_rows_and_documents_at_fault_are_dead_lettered(dividing: World) -> None:
    """Each with its error, in few lines of the log; the others are written, and later they."""
    dividing.sql(USER + POSTS.format(90))
    dividing.sql("UPDATE posts SET views = 13 WHERE id % 3 = 1")
    dividing.sql("UPDATE posts SET created = 'infinity' WHERE id % 3 = 2")
    with capture_logs() as logs:
        dividing.backfill()
    kinds = list(letters(dividing).values())
    assert (kinds.count("DivisionByZero"), kinds.count(NOT_PARSED), len(kinds)) == (30, 30, 60)
    assert dividing.held().keys() == {str(id_) for id_ in range(3, 91, 3)}
    logged = [event["kind"] for event in logs if event["event"] == "document.dead_lettered"]
    # Each writer repeats itself only now and then; how often that is depends on how long it takes.
    assert (set(logged), len(logged) < 30) == ({"DivisionByZero", NOT_PARSED}, True), logged
    with dividing.connect() as connection:
        counted = "SELECT documents_done, indexed, dead_lettered FROM syncer.job WHERE kind = 'backfill'"
        assert connection.execute(counted).fetchall() == [(90, 30, 60)]
    dividing.sql("UPDATE posts SET views = 0, created = now()")
    dividing.backfill()
    assert dividing.differences() == []
    assert letters(dividing) == {}


# Changes that cannot be followed


@pytest.fixture
def noted(empty_world: World) -> World:
    """A world whose affects query raises for a note that refers to no number, though the SELECT bears it."""
    folder = empty_world.document_folder
    empty_world.sql(BLOG_SCHEMA.read_text())
    empty_world.sql("CREATE TABLE notes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, ref text NOT NULL)")
    empty_world.sql("CREATE INDEX ON notes (ref)")
    (folder / "select.sql").write_text(
        "SELECT p.id AS _id, (SELECT count(*) FROM notes AS n WHERE n.ref IN (p.id::text, 'x' || p.id)) AS notes\n"
        "FROM posts AS p"
    )
    (folder / "index.json").write_text('{"mappings": {"dynamic": true}}')
    (folder / "affects").mkdir()
    affects = "SELECT p.id AS _id FROM %(rows)s AS r JOIN posts AS p ON p.id = r.ref::bigint"
    (folder / "affects" / "notes.sql").write_text(affects)
    empty_world.migrate()
    harness.add_posts(empty_world, 3)
    empty_world.apply()
    return empty_world


def test_a_change_that_cannot_be_followed_refreshes_all(noted: World) -> None:
    """The document goes on, and a job writes all of it, with what the others in the batch changed."""
    noted.sql("INSERT INTO notes (ref) VALUES ('2'), ('x3'), ('1')")
    with capture_logs() as logs, harness.following(noted) as follower, noted.connect() as connection:
        follower.handle()
        (job,) = unfinished(connection)
        assert job.kind is JobKind.REFRESH
        failed = "the query from a change of public.notes to documents failed on the data: InvalidTextRepresentation"
        assert failed in job.reason
        noted.refresh(follower.index)
    require_holds(noted)
    assert "x3" not in json.dumps(logs, default=str)


def test_a_refresh_passes_what_cannot_be_decoded(world: World) -> None:
    """The server keeps half a surrogate pair, and nesting that is too deep for the decoder: both are written again."""
    deep = '{"a":' * 990 + "1" + "}" * 990
    world.sql("CREATE TABLE things (id int PRIMARY KEY, content json)")
    world.sql("INSERT INTO things VALUES (1, '{}'), (2, %s), (3, '{}'), (4, %s)", r'{"a": "\ud800"}', deep)
    mappings = {"properties": {"content": {"type": "object", "enabled": False}}}
    world.define("thing", "SELECT t.id AS _id, t.content FROM things AS t", mappings)
    world.apply()
    with world.index() as index, world.connect() as connection:
        job = queue.create(connection, registry.named(connection, "thing")[0], JobKind.REFRESH)
        assert job is not None
        world.refresh(index)
        assert find(connection, job.id).state is JobState.DONE
    assert "4 documents equal" in world.prints("verify", "thing")


def test_a_fan_out_that_cannot_be_listed_refreshes_all(noted: World) -> None:
    """The job ends, and names the one that does its work; the document is not suspended."""
    with noted.index() as index, noted.connect() as connection:
        noted.sql("INSERT INTO notes (ref) VALUES ('x3')")
        document = registry.named(connection, "blogpost")[0]
        job = queue.create_fan_out(connection, document, {"public.notes": [{"ref": "2"}, {"ref": "x3"}]})
        assert job is not None
        noted.refresh(index)
        ended = find(connection, job.id)
        assert ended.state is JobState.CANCELLED
        assert (ended.error or "").startswith(f"Job {job.id + 1} takes its place")
        assert find(connection, job.id + 1).state is JobState.DONE
        assert "a change of public.notes" in find(connection, job.id + 1).reason
    require_holds(noted)


def test_a_fan_out_whose_listing_does_not_end_refreshes_all(noted: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other jobs do not wait for it: an affects query over a cycle, say."""
    monkeypatch.setattr(listing, "LIST_SECONDS_MAX", 1)
    endless = "WITH RECURSIVE r AS (SELECT n.id FROM %(rows)s AS n UNION ALL SELECT r.id FROM r WHERE r.id > 0)"
    (noted.document_folder / "affects" / "notes.sql").write_text(f"{endless} SELECT r.id AS _id FROM r WHERE r.id < 0")
    noted.apply()
    with noted.index() as index, noted.connect() as connection:
        noted.sql("INSERT INTO notes (ref) VALUES ('x3')")
        document = registry.named(connection, "blogpost")[0]
        job = queue.create_fan_out(connection, document, {"public.notes": [{"id": "1"}]})
        assert job is not None
        noted.refresh(index)
        assert (find(connection, job.id).error or "").endswith("to documents failed: QueryCanceled 57014")
    require_holds(noted)


# Large, deep and odd values


PAPERS = """
CREATE TABLE files (id int PRIMARY KEY, code text);
CREATE TABLE papers (id int PRIMARY KEY, doc jsonb NOT NULL);
INSERT INTO files SELECT g, g FROM generate_series(1, 3) AS g;
INSERT INTO papers VALUES (1, '{"file": 1}'), (2, '{"file": 2}');
"""
NUMBER_OF_PAPERS = """
SELECT f.id AS _id, (SELECT count(*) FROM papers AS p WHERE (p.doc ->> 'file')::int = f.id) AS title FROM files AS f
"""
DOCS = {
    "a number of 5,001 digits": """'{"file": 3, "n": 1e5000}'""",
    "nested a thousand levels": """('{"file": 3, "n": ' || repeat('[', 1000) || repeat(']', 1000) || '}')""",
    "more than Kafka takes": """('{"file": 3, "n": [' || repeat('1e130000, ', 9) || '0]}')""",
    "large": """('{"file": 3, "n": "' || repeat('x', 3000000) || '"}')""",
}


def test_whatever_an_application_commits_reaches_its_documents(empty_world: World) -> None:
    """The documents of the row as it was and as it is are written, whether its image can be carried or not."""
    (empty_world.document_folder / "select.sql").write_text(NUMBER_OF_PAPERS)
    empty_world.sql(PAPERS)
    empty_world.set_up()
    back = "UPDATE papers SET doc = format('{\"file\": %s}', id)::text::jsonb"
    with capture_logs() as logs, harness.following(empty_world) as follower:
        for name, doc in DOCS.items():
            moved = f"UPDATE papers SET doc = {doc}::jsonb WHERE id = 1;"
            moved += "UPDATE papers SET doc = '{\"file\": 1}' WHERE id = 2"
            for change in (moved, back):
                empty_world.sql(change)
                assert len(empty_world.differences()) > 1, name
                follower.drain()
    assert not [event for event in logs if event["event"] == "topic.records_lost"]


SIZES = {
    "a text of 270 MB": ("text", "repeat('x', 270000000)"),
    "jsonb that prints more than a gigabyte": ("jsonb", "('[' || repeat('1e130000, ', 8400) || '0]')::jsonb"),
}


@pytest.mark.parametrize(("type_", "value"), SIZES.values(), ids=SIZES.keys())
def test_no_value_is_too_large_to_be_captured(empty_world: World, type_: str, value: str) -> None:
    """Its row is captured, without images unless they are small enough; what comes in between is captured in full."""
    affects = "SELECT c.id AS _id FROM %(rows)s AS c WHERE c.place IS NOT NULL"
    shutil.rmtree(empty_world.document_folder)
    empty_world.define("thing", "SELECT t.id AS _id, t.name FROM things AS t", things=affects)
    empty_world.sql(f"CREATE TABLE things (id int PRIMARY KEY, place {type_}, name text);")
    empty_world.migrate()
    install(empty_world)
    empty_world.sql(f"INSERT INTO things VALUES (1, {value}, 'a')")
    empty_world.sql("UPDATE things SET name = 'b'")
    empty_world.sql("DELETE FROM things")
    changes = written(empty_world)
    assert sorted(operation for _, operation, _, _ in changes) == ["D", "I", "U"]
    images = [image for change in changes for image in change[2:] if image is not None]
    assert not images or all(len(image["place"]) < triggers.IMAGE_BYTES_MAX for image in images)
    empty_world.sql("INSERT INTO things VALUES (2, NULL, 'a')")
    assert written(empty_world) == [("public.things", "I", None, {"id": "2", "place": None})]


def test_a_row_that_is_too_large_is_set_aside_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is never fetched, and one that Postgres fails at: both are dead letters, and nothing is suspended."""
    monkeypatch.setattr(compose, "DOCUMENT_BYTES_MAX", 1_000_000)
    half = "repeat(repeat(p.body, 1000), 100000)"  # of six letters: more than any value may have, if there are two
    world.edit_file("p.body,", f"CASE WHEN p.views = 13 THEN {half} || {half} ELSE p.body END AS body,")
    world.apply()
    harness.add_posts(world, 4)
    world.sql("UPDATE posts SET body = repeat('x', 2000000) WHERE id = 2")
    world.sql("UPDATE posts SET body = 'xxxxxx', views = 13 WHERE id = 3")
    with world.index() as index, world.writer(index) as writer:
        report = writer.write(world.index_of(), ["1", "2", "3", "4"])
        assert (report.indexed, report.dead_lettered) == (2, 2)
        assert world.sql(DEAD_LETTERS) == [("2", "document_too_large"), ("3", "InternalError_")]
        assert world.sql(SUSPENDED) == []
        world.sql("UPDATE posts SET body = 'short now', views = 0")
        assert writer.write(world.index_of(), ["1", "2", "3", "4"]).indexed == 4
    require_holds(world)


def test_an_id_that_no_row_can_have_is_an_orphan(empty_world: World) -> None:
    """Verify calls it extra, a cleanup removes it, and no document is suspended."""
    shutil.rmtree(empty_world.document_folder)
    empty_world.define("thing", "SELECT id AS _id, name FROM things")
    empty_world.documents = ("thing",)
    empty_world.sql("CREATE DOMAIN small AS int CHECK (value < 100)")
    empty_world.sql("CREATE TABLE things (id small PRIMARY KEY, name text); INSERT INTO things VALUES (1, 'a row')")
    empty_world.migrate()
    empty_world.apply()
    with empty_world.elasticsearch() as client:
        for orphan in ["orphan", "1e5", "100", "2026-02-30"]:
            client.index(index=empty_world.alias_of("thing"), id=orphan, document={"name": "by hand"}, refresh=True)
    empty_world.sql("DELETE FROM syncer.outbox")  # no change is in flight
    with empty_world.connect() as connection, empty_world.index() as index:
        document = harness.the_document(connection, "thing")
        report = verify(empty_world.connect, document, index=index, settle_seconds=0.1)
    assert report.suspended is None
    assert {drift.kind for drift in report.drifts} == {DriftKind.EXTRA}
    empty_world.backfill("thing")
    assert empty_world.sql(SUSPENDED) == []
    assert empty_world.differences() == []


# Rows that the SELECT meets whatever it is asked for


VALUE = "a-s3cret"
"""What no log, event, status or dead letter may show."""
FOR_ALL = {
    # By name: what holds the row, the SELECT, and the expression that fails.
    "a cast in a condition": "SELECT p.id AS _id, p.v AS v FROM pay AS p WHERE p.v::int > 0",
    "a cast in a join": "SELECT p.id AS _id, r.note AS v FROM pay AS p JOIN rates AS r ON r.id = p.v::int",
    "an id that no index finds": "SELECT p.id || '/' || p.v::int AS _id, p.v AS v FROM pay AS p",
    "the check of a domain": "SELECT p.id AS _id, p.v AS v FROM pay AS p WHERE p.v::short < 'b'",
    "a function that raises": "SELECT p.id AS _id, p.v AS v FROM pay AS p WHERE public.checked(p.v)",
    "a function that needs too much": "SELECT p.id AS _id, p.v AS v FROM pay AS p WHERE public.greedy(p.v)",
}
PAY = """
CREATE DOMAIN short AS text CHECK (length(value) < 3);
CREATE FUNCTION checked(v text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN IF length(v) > 3 THEN RAISE 'not %', v; END IF; RETURN true; END $$;
CREATE FUNCTION greedy(v text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN IF length(v) > 3 THEN RAISE 'out of memory' USING ERRCODE = 'out_of_memory'; END IF; RETURN true; END $$;
CREATE TABLE pay (id int PRIMARY KEY, v text); CREATE TABLE rates (id int PRIMARY KEY, note text);
CREATE TABLE other (id int PRIMARY KEY, v text);
INSERT INTO pay SELECT g, 1 FROM generate_series(1, 3) AS g; INSERT INTO rates VALUES (1, 'one'); ANALYZE;
"""


def test_a_row_that_fails_for_every_document_suspends_its_definition(empty_world: World) -> None:
    """No component ends, the others go on, no value is shown, and it resumes by itself once the row is gone."""
    world = empty_world
    define_each(world, FOR_ALL.values())
    suspended_names, reasons = world.documents, dict[str, str]()
    world.define("other", "SELECT o.id AS _id, o.v FROM other AS o")
    world.documents += ("other",)
    world.sql(PAY)
    world.migrate()
    world.apply()
    with capture_logs() as logs, harness.following(world) as follower, world.job_worker(follower.index) as jobs:
        world.sql(f"INSERT INTO pay VALUES (7, '{VALUE}'); INSERT INTO other VALUES (1, 'x')")
        follower.handle()
        assert world.differences("other") == []

        def is_told() -> bool:
            jobs.run_once()
            reasons.update(world.sql(f"{SUSPENDED} UNION ALL SELECT document, error FROM syncer.dead_letter"))
            return len(reasons) >= len(FOR_ALL)

        wait_until(is_told, what="each cause is told", detail=lambda: str(reasons))
        assert sorted(reasons) == [*suspended_names]
        for name, select in zip(suspended_names, FOR_ALL.values(), strict=True):
            words = "needs more than Postgres gives it" if "greedy" in select else "fails on the data"
            assert words in reasons[name], select
        world.sql("INSERT INTO pay VALUES (8, '1')")
        follower.handle()
        jobs.run_once()
        world.sql("DELETE FROM pay WHERE id = 7")
        wait_until(lambda: jobs.run_once() >= 0 and not world.sql(SUSPENDED), what="all resume")
        follower.drain()
    require_holds(world)
    assert VALUE not in json.dumps([logs, reasons], default=str)


TREE = """
CREATE TABLE nodes (id int PRIMARY KEY, parent_id int, name text, weight int DEFAULT 1);
CREATE INDEX ON nodes (parent_id);
CREATE TABLE other (id int PRIMARY KEY, v text);
INSERT INTO nodes SELECT g, nullif(g / 2, 0), 'n' || g FROM generate_series(1, 8) AS g; ANALYZE;
CREATE FUNCTION raises(name text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN IF name = 'x' THEN RAISE 'no memory' USING ERRCODE = 'out_of_memory'; END IF; RETURN name; END $$;
"""
PARENTS = "SELECT n.parent_id AS id UNION ALL SELECT p.parent_id FROM above JOIN nodes AS p USING (id)"
LINES = "SELECT repeat(md5(g::text), 30) FROM generate_series(1, n.weight) AS g"
ENDLESS = {
    # By name: what a node shows, and the change of one that makes it need too much.
    "a cycle in a tree": (f"(WITH RECURSIVE above AS ({PARENTS}) SELECT count(*) FROM above)", "parent_id = id"),
    "temporary files": (f"(SELECT length(string_agg(s, '' ORDER BY s)) FROM ({LINES}) AS t (s))", "weight = 5000"),
    "memory": ("public.raises(n.name)", "name = 'x'"),
}


def make_tree(world: World, select: str) -> None:
    """Make the nodes of a tree documents, beside another document; they may have few temporary files if they sort."""
    shutil.rmtree(world.document_folder)
    below = "SELECT c.id FROM %(rows)s AS c UNION SELECT n.id FROM nodes AS n JOIN below ON n.parent_id = below.id"
    affects = f"WITH RECURSIVE below AS ({below}) SELECT below.id AS _id FROM below"
    world.define("node", select, nodes=affects)
    world.define("other", "SELECT o.id AS _id, o.v FROM other AS o")
    world.documents = ("node", "other")
    world.sql(TREE)
    if "ORDER BY" in select:
        world.sql(f"ALTER DATABASE {world.name} SET temp_file_limit = '1MB'")
        world.sql(f"ALTER DATABASE {world.name} SET work_mem = '64kB'")
    world.migrate()
    world.apply()


@pytest.mark.parametrize(("field", "spoils"), ENDLESS.values(), ids=ENDLESS)
def test_a_document_that_takes_too_much_holds_up_no_other(
    empty_world: World, field: str, spoils: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set aside alone, with the limit that it met, until its row is right. The others are written."""
    monkeypatch.setattr(compose, "STATEMENT_SECONDS_MAX", 1)
    world = empty_world
    make_tree(world, f"SELECT n.id AS _id, {field} AS v FROM nodes AS n")
    with harness.following(world) as follower:
        world.sql(f"UPDATE nodes SET {spoils} WHERE id = 7")
        world.sql("INSERT INTO nodes VALUES (9, 4, 'n9'); INSERT INTO other VALUES (1, 'x')")
        follower.handle()
        [(id_, error)] = world.sql("SELECT id, error FROM syncer.dead_letter")
        assert (id_, world.sql(SUSPENDED)) == ("7", [])
        reason = "does not end in time" if spoils == "parent_id = id" else "needs more than Postgres gives it"
        assert error.startswith(f"the SELECT {reason}: ")
        with world.connect() as connection:
            index_name = world.index_of("node")
            for took_too_much, ids in ((True, ["7"]), (False, []), (None, ["7"])):
                assert dead_letters.next_ids(connection, index_name, "", 9, took_too_much=took_too_much) == ids
        assert "9" in world.held("node")
        assert world.differences("other") == []
        world.sql("UPDATE nodes SET parent_id = 3, name = 'n7', weight = 1 WHERE id = 7")
        follower.drain()
    require_holds(world)


LIMITS = ("syncer.indexing.compose:STATEMENT_SECONDS_MAX", "syncer.verify.compare:WHOLE_SECONDS_MAX")
LIMITED = Plan(constants=dict.fromkeys(LIMITS, 2))
CYCLE = ENDLESS["a cycle in a tree"][0]
TOO_MUCH = {
    **{
        name: (f"SELECT n.id AS _id, {field} AS v FROM nodes AS n", spoils) for name, (field, spoils) in ENDLESS.items()
    },
    "in a condition": (f"SELECT n.id AS _id, n.name FROM nodes AS n WHERE {CYCLE} < 99", "parent_id = id"),
    "in a group": (f"SELECT 0 + n.id AS _id, max({CYCLE}) AS v FROM nodes AS n GROUP BY 1", "parent_id = id"),
}


@pytest.mark.parametrize(("select", "spoils"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_takes_too_much_is_not_compared_and_hides_no_other(empty_world: World, select: str, spoils: str) -> None:
    """Verify names it and compares the others; explain says what it takes too much of. Neither waits for ever."""
    world = empty_world
    make_tree(world, select)
    world.sql(f"UPDATE nodes SET {spoils} WHERE id = 7")
    with world.elasticsearch() as client:
        client.delete(index=world.alias_of("node"), id="3", refresh=True)
        client.index(index=world.alias_of("node"), id="4500", document={}, refresh=True)
    world.sql("DELETE FROM syncer.outbox")  # no change is in flight
    (report,) = json.loads(world.prints("verify", "node", "--json", code=1, plan=LIMITED))
    kinds_of_drift = {drift["id"]: drift["kind"] for drift in report["drifts"]}
    assert kinds_of_drift == {"3": "missing", "4500": "extra", "7": "unreadable"}
    assert (report["documents"], report["suspended"], report["busy"]) == (7, None, [])
    (failure,) = (drift["failure"] for drift in report["drifts"] if drift["id"] == "7")
    reason = "does not end in time" if spoils == "parent_id = id" else "needs more than Postgres gives it"
    assert failure.startswith(f"the SELECT {reason}: ")
    told = world.prints("explain", "node", "7", code=1, plan=LIMITED)
    assert f"It cannot be read: {failure}.\nFix the data" in told


def test_a_condition_that_never_ends_for_one_row_holds_up_no_job(
    empty_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backfill lists and writes all others, and sets that one aside."""
    for module, name in ((compose, "STATEMENT_SECONDS_MAX"), (listing, "LIST_SECONDS_MAX")):
        monkeypatch.setattr(module, name, 1)
    world = empty_world
    make_tree(world, TOO_MUCH["in a condition"][0])
    world.sql("UPDATE nodes SET parent_id = id WHERE id = 7; UPDATE nodes SET name = 'x' WHERE id = 3")
    world.backfill("node")
    assert letters(world) == {"7": "QueryCanceled"}
    assert world.held("node")["3"] == {"name": "x"}


def test_a_select_that_never_ends_cannot_be_compared(empty_world: World) -> None:
    """If it does not, whatever it is asked for, verify and explain say so, each within its limits."""
    world = empty_world
    every = f"SELECT n.id, {CYCLE} AS above FROM nodes AS n OFFSET 0"
    make_tree(world, f"SELECT t.id AS _id, count(*) AS v FROM ({every}) AS t WHERE t.above < 99 GROUP BY t.id")
    world.sql("UPDATE nodes SET parent_id = id WHERE id = 7")
    for command in ("verify node", "explain node 2"):
        told = world.prints(*command.split(), code=1, plan=LIMITED)
        assert "The SELECT of node does not end in time: " in told, told


FOR_ONE = {
    "a field": "SELECT p.id AS _id, p.v AS v, 10 / (length(p.v) - 8) AS ratio FROM pay AS p",
    "a condition": "SELECT p.id AS _id, p.v AS v FROM pay AS p WHERE p.v::int > 0",
    "a join": "SELECT p.id AS _id, r.note AS v FROM pay AS p LEFT JOIN rates AS r ON r.id = p.v::int",
    "no root": "SELECT p.id % 5000 AS _id, 10 / min(length(p.v) - 8) AS v FROM pay AS p GROUP BY p.id % 5000",
}


def test_one_row_that_fails_hides_no_other(empty_world: World) -> None:
    """A backfill writes all others, verify compares them and names that one by its id, and nothing is suspended."""
    world = empty_world
    define_each(world, FOR_ONE.values(), pay="SELECT c.id % 5000 AS _id FROM %(rows)s AS c")
    world.sql(PAY + "INSERT INTO pay SELECT g, 1 FROM generate_series(4, 1500) AS g;")
    world.sql("ANALYZE")
    world.migrate()
    world.apply()
    world.sql(f"INSERT INTO pay VALUES (4999, '{VALUE}')")
    world.sql("UPDATE pay SET v = '11' WHERE id = 7; ANALYZE")
    with world.elasticsearch() as client:
        for name in world.documents:
            world.backfill(name)
            client.delete(index=world.alias_of(name), id="3", refresh=True)
            client.index(index=world.alias_of(name), id="4500", document={}, refresh=True)
    letters_of = world.sql("SELECT document, id FROM syncer.dead_letter ORDER BY 1")
    assert letters_of == [(name, "4999") for name in world.documents]
    world.sql("DELETE FROM syncer.outbox")  # no change is in flight
    verified = world.prints("verify", "--json", code=1)
    reports = json.loads(verified)
    assert [report["document"] for report in reports] == [*world.documents]
    for report, select in zip(reports, FOR_ONE.values(), strict=True):
        assert report["suspended"] is None, select
        kinds_of_drift = {drift["id"]: drift["kind"] for drift in report["drifts"]}
        assert kinds_of_drift == {"3": "missing", "4500": "extra", "4999": "failing"}, select
        assert report["documents"] == 1500, select
    explained = [world.syncer("explain", name, "4999").stdout for name in world.documents]
    assert ["fails on the data" in text for text in explained] == [True] * len(FOR_ONE), explained
    assert VALUE not in world.syncer("verify").stdout + verified + "".join(explained)
    world.sql("DELETE FROM pay WHERE id = 4999; DELETE FROM syncer.outbox")
    world.prints("verify", "--repair")
    assert world.sql(SUSPENDED) == []


@pytest.mark.parametrize(
    ("failing", "is_suspended"),
    [("r.id = 1", True), ("r.id > 1", False)],
    ids=["a row that all show", "a row that many show"],
)
def test_a_row_that_many_documents_show(
    empty_world: World, monkeypatch: pytest.MonkeyPatch, failing: str, *, is_suspended: bool
) -> None:
    """If all of them show it, the definition is suspended after a while; else each of them is a dead letter."""
    monkeypatch.setattr(writer, "_FAILING_MAX", 20)
    world = empty_world
    shutil.rmtree(world.document_folder)
    world.define(
        "pay",
        "SELECT p.id AS _id, 10 / r.rate AS v, 10 / s.rate AS w FROM pay AS p JOIN rates AS r ON r.id = p.base"
        " JOIN rates AS s ON s.id = p.rate",
    )
    world.documents = ("pay",)
    world.sql(
        "CREATE TABLE rates (id int PRIMARY KEY, rate int); INSERT INTO rates VALUES (1, 1), (2, 1);"
        "CREATE TABLE pay (id int PRIMARY KEY, base int, rate int);"
        "CREATE INDEX ON pay (base); CREATE INDEX ON pay (rate);"
        "INSERT INTO pay SELECT g, 1, CASE WHEN g < 150 THEN 2 ELSE 1 END FROM generate_series(1, 200) AS g"
    )
    world.migrate()
    world.apply()
    with harness.following(world, many=100) as follower, world.job_worker(follower.index) as jobs:
        world.sql(f"UPDATE rates AS r SET rate = 0 WHERE {failing}")
        follower.handle()
        world.refresh(follower.index)
        assert bool(world.sql(SUSPENDED)) is is_suspended
        assert len(letters(world)) < 150 if is_suspended else len(letters(world)) == 149
        jobs.run_once()
        assert bool(world.sql(SUSPENDED)) is is_suspended
        world.sql("UPDATE rates SET rate = 2")
        wait_until(lambda: jobs.run_once() >= 0 and not world.sql(SUSPENDED), what="it resumes")
        follower.drain()
    require_holds(world)


NO_UTF8 = {
    14: """'\\303'::"char"::text""",
    17: "(SELECT json_serialize(jsonb_agg(g)) FROM generate_series(1, 200) AS g)",
}
"""By major version since when, an expression that is no UTF-8."""
POSITIONS = {
    # By name: the SELECT, and the ids that are held beside those of sound rows.
    "key": ("SELECT t.c AS _id, t.id FROM things AS t", set()),
    "expression": ("SELECT t.id || '-' || t.c AS _id FROM things AS t", set()),
    "routing": ("SELECT t.id AS _id, t.c AS _routing, t.id FROM things AS t", set()),
    "field": ("SELECT t.id AS _id, t.c FROM things AS t", set()),
    "join": ("SELECT t.id AS _id, o.id AS other FROM things AS t JOIN others AS o ON o.c = t.c", {"2"}),
    "condition": ("SELECT t.id AS _id, (SELECT o.id FROM others AS o WHERE o.c = t.c) FROM things AS t", {"2"}),
}


def test_a_text_that_is_not_utf_8_is_named_and_ends_nothing(empty_world: World) -> None:
    """Wherever it stands: the other documents are written, and if its document cannot be, it is a dead letter."""
    world = empty_world
    major = int(world.sql("SHOW server_version_num")[0][0]) // 10_000
    if major == 16:
        pytest.skip("Postgres 16 makes no such text")
    define_each(world, (select for select, _ in POSITIONS.values()))
    world.sql(
        "CREATE TABLE others (id int, c text PRIMARY KEY); CREATE TABLE things (id int PRIMARY KEY, c text UNIQUE)"
    )
    world.migrate()
    world.apply()
    world.sql(f"INSERT INTO others VALUES (1, 'a'), (2, {NO_UTF8[17 if major > 16 else 14]})")
    with harness.following(world) as follower:
        world.sql("INSERT INTO things VALUES (1, 'a'); INSERT INTO things SELECT 2, c FROM others WHERE id = 2")
        follower.handle()
        world.refresh(follower.index)
    letters_of = [name for (name,) in world.sql("SELECT document FROM syncer.dead_letter ORDER BY 1")]
    for name, (position, (_, ids)) in zip(world.documents, POSITIONS.items(), strict=True):
        assert {id_.replace("-a", "") for id_ in world.held(name)} in ({"a"}, {"1"} | ids), position
        assert letters_of.count(name) == (0 if ids else 1), position
    for command in ("plan", "verify", "verify --repair", "status", "dead-letters list"):
        ended = world.syncer(*command.split())
        assert "Traceback" not in ended.stderr, ended.stderr
    assert world.sql(SUSPENDED) == []
