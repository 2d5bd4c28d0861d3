"""Plan against real servers: what it says of targets, documents, costs and indexes is what is there."""

from __future__ import annotations

import json
import re
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any, Self

import psycopg
import pytest
from elastic_transport import Transport
from psycopg import sql

from syncer.apply import activate, cost, plan, preview, trial
from syncer.apply.plan import PlannedChange
from syncer.apply.preview import DocumentPreview, Preview
from syncer.apply.trial import PlanProblem, PlanSeverity
from syncer.base.model import Target
from syncer.documents import analyze, definition, queries, registry
from syncer.documents.definition import Definition
from syncer.documents.snapshot import Tries
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.record import STATE_INDEX
from syncer.monitoring.doctor import CheckSeverity
from tests.faults.harness import following
from tests.support import doctor
from tests.support.world import BLOG_SCHEMA, World, planned, wait_until

POSTS = """
INSERT INTO users (id, name, email) SELECT i, 'user ' || i, i || '@example.com' FROM generate_series(1, 50) AS i;
INSERT INTO posts (id, user_id, title, body) SELECT i, 1 + i % 50, 'title ' || i, 'body' FROM generate_series(1, 250) i;
INSERT INTO comments (post_id, name, comment, age) SELECT 1 + i % 250, 'bob', 'nice', 7 FROM generate_series(1, 900) i;
ANALYZE users, posts, comments;
"""
AS_KEYWORD = ('"title": { "type": "text" }', '"title": { "type": "keyword" }')


@pytest.fixture
def blog(empty_world: World) -> World:
    """The blog's tables with rows, and the syncer schema; nothing is active."""
    empty_world.sql(BLOG_SCHEMA.read_text())
    empty_world.sql(POSTS)
    empty_world.migrate()
    return empty_world


def look(world: World, only: str | None = None) -> Preview:
    """What ``syncer plan`` finds."""
    with world.connect() as connection, world.index() as index, world.indices() as indices:
        return preview.read(connection, index, indices, world.config, only=only)[1]


def of(world: World, name: str = "blogpost") -> DocumentPreview:
    """What it finds of one document."""
    (preview_of_one,) = look(world, name).documents
    return preview_of_one


def problems(world: World, name: str, select: str, properties: dict[str, Any] | None = None) -> list[str]:
    """What it finds wrong with a new document."""
    world.define(name, select, {"dynamic": True, "properties": properties or {}})
    return [f"{problem.severity}: {problem.message} {problem.action}" for problem in of(world, name).problems]


def edit(world: World, file: str, old: str, new: str) -> None:
    """Change the blogpost's definition."""
    path = world.document_folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def attempt(world: World, kind: type[Index]) -> DocumentPreview:
    """What plan finds of the first document, with samples written in a way of their own."""
    with world.connect() as connection, world.indices() as indices, world.elasticsearch() as client:
        index = kind(client, bulk_bytes_max=8_000_000)
        return preview.read(connection, index, indices, world.config)[1].documents[0]


def physical(world: World) -> dict[str, Any]:
    """Every index of this world, hidden ones too, as it is."""
    with world.elasticsearch() as client:
        names = client.indices.get(index=f"{world.alias}*", expand_wildcards="all").body
        return {
            name: (body["mappings"], body["settings"]["index"]["uuid"], body["aliases"]) for name, body in names.items()
        }


def traces(world: World) -> list[tuple[Any, ...]]:
    """What plan could leave in Postgres."""
    return world.sql(
        "SELECT 'relation', oid::regclass::text FROM pg_class WHERE relnamespace <> 'pg_catalog'::regnamespace "
        "UNION ALL SELECT 'trigger', tgname FROM pg_trigger "
        "UNION ALL SELECT 'document', name || revision || coalesce(loaded_at::text, '') FROM syncer.document "
        "UNION ALL SELECT 'lock', classid || '/' || objid FROM pg_locks WHERE locktype = 'advisory' "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY 1, 2"
    )


IN_PLACE = (
    ("index.json", '"body": { "type": "text" }', '"body": { "type": "text" }, "views": { "type": "long" }'),
    ("index.json", '"number_of_replicas": 0', '"number_of_replicas": 0, "refresh_interval": "9s"'),
    ("select.sql", "p.body,", "upper(p.body) AS body,"),
)
REBUILT = (
    ('"type": "nested"', '"type": "object"', "nested"),
    ('"number_of_shards": 1', '"number_of_shards": 3', "index.number_of_shards"),
    ('"body": { "type": "text" }', '"body": { "type": "text", "analyzer": "english" }', "parameter [analyzer]"),
)


def test_plan_and_apply_agree(blog: World) -> None:
    """What plan calls in place is done in place by apply; what needs a new index gets one, beside the others."""
    adored = blog.define("adored", "SELECT p.id AS _id, p.title FROM posts AS p", {"properties": {}})
    blog.apply()
    names_before = physical(blog).keys()
    for file, old, new in IN_PLACE:
        edit(blog, file, old, new)
    in_place = of(blog)
    reason = "index.json; the SELECT, or an affects query"
    assert (in_place.outcome, in_place.reason, in_place.problems) == (PlannedChange.CHANGED, reason, ())
    blog.apply()
    assert physical(blog).keys() == names_before

    index_json = (blog.document_folder / "index.json").read_text()
    for old, new, reason in REBUILT:
        edit(blog, "index.json", old, new)
        assert reason in str(of(blog).reason)
        (blog.document_folder / "index.json").write_text(index_json)
    (adored / "index.json").write_text('{"mappings": {"properties": {"more": {"type": "long"}}}}')
    edit(blog, "index.json", *AS_KEYWORD)
    is_there = (traces(blog), physical(blog))
    adored_preview, blogpost = look(blog).documents
    assert (adored_preview.outcome, blogpost.outcome) == (PlannedChange.CHANGED, PlannedChange.REBUILD)
    assert (traces(blog), physical(blog)) == is_there, "a plan leaves nothing"
    with blog.connect() as connection, blog.indices() as indices:
        activate.carry_out(connection, indices, planned(connection, indices, blog.config))
    building = of(blog)
    assert building.outcome is PlannedChange.BUILDING
    assert building.reason is not None
    blog.apply()
    assert physical(blog).keys() - names_before == {blog.index_of()}
    edit(blog, "select.sql", "-- A blog post", "-- A post")
    assert of(blog).outcome is PlannedChange.UNCHANGED
    assert blog.differences() == []


def test_no_search_sees_a_scratch_index_and_an_interrupt_leaves_none(blog: World) -> None:
    """A search of the alias with a star finds no document of a trial, and Ctrl-C in the middle of it leaves nothing."""
    counts: list[int] = []

    class Interrupting(Index):
        def write(self, target: Target, compositions: Any) -> Any:
            super().write(target, compositions)
            with blog.elasticsearch() as client:
                client.indices.refresh(index=target.index_name)
                counts.extend(client.count(index=name).body["count"] for name in (target.index_name, f"{blog.alias}*"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(blog, Interrupting)
    assert counts == [queries.SAMPLE_MAX, 0]
    assert physical(blog) == {}
    assert not [kind for kind, _ in traces(blog) if kind == "lock"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize(
    "at", [(trial, "notes", 1), (cost, "measure", 1), (plan, "step", 2), (trial, "take_sample", 2)]
)
def test_what_ends_a_plan_beside_a_trial_leaves_no_scratch_index(
    blog: World, monkeypatch: pytest.MonkeyPatch, at: tuple[ModuleType, str, int], error: type[BaseException]
) -> None:
    """Rule: Ctrl-C while Elasticsearch tries one document, and Postgres is asked about another, leaves nothing."""
    blog.define("later", "SELECT p.id AS _id, p.title FROM posts AS p", {"properties": {}})
    is_writing, is_ended, calls = Event(), Event(), count(1)
    module, name, call = at
    original = getattr(module, name)

    class Slow(Index):
        def write(self, target: Target, compositions: Any) -> Any:
            outcome = super().write(target, compositions)
            is_writing.set()
            assert is_ended.wait(60)
            return outcome

    def ending(*arguments: Any, **options: Any) -> Any:
        if next(calls) < call:
            return original(*arguments, **options)
        assert is_writing.wait(60)
        is_ended.set()
        raise error

    monkeypatch.setattr(module, name, ending)
    with pytest.raises(error):
        attempt(blog, Slow)
    assert physical(blog) == {}


@pytest.mark.parametrize("at_once", [1, 3, 9])
def test_each_document_has_the_problems_of_its_own_trial(
    blog: World, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """While Elasticsearch tries one document, another is begun; each error reaches the one that it is about."""
    monkeypatch.setattr(preview, "_TRIALS_MAX", at_once)
    select, strict = "SELECT p.id AS _id, {} FROM posts AS p", {"dynamic": "strict", "properties": {}}
    blog.define("a", select.format("p.title"), strict)
    blog.define("b", select.format("1 / (p.id - 7) AS quotient"))
    (blog.define("c", select.format("p.title")) / "index.json").write_text('{"settings": {"index.nix": 1}}')
    blog.define("d", select.format("p.title"))
    blog.define("e", select.format("p.body"), strict)
    words = {"a": "[title]", "b": "division by zero", "c": "index.nix", "e": "[body]"}
    documents = [document for document in look(blog).documents if document.name != "blogpost"]
    assert [document.name for document in documents] == list("abcde")
    for document in documents:
        messages = [problem.message for problem in document.errors]
        assert [words[document.name] in message for message in messages] == [True] * (document.name in words), messages


def test_a_definition_that_its_trial_refuses_has_no_outcome(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that Postgres refuses: apply does not accept it, so no index would be made for it."""
    refusal = PlanProblem(PlanSeverity.REFUSED, "its documents are read back otherwise")
    monkeypatch.setattr(trial, "_read_back", lambda *_: [refusal])
    refused = of(blog)
    assert (refused.outcome, refused.problems) == (None, (refusal,))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_no_failure_to_clean_up_replaces_what_ended_a_trial(
    blog: World, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Rule: Ctrl-C ends a command although Elasticsearch does not answer: no error takes its place and is noted."""
    monkeypatch.setattr("syncer.elasticsearch.indices._CLEANUP_TIMEOUT_SECONDS", 0.5)
    server = blog.sandbox.elasticsearch

    class Interrupting(Index):
        def write(self, target: Target, compositions: Any) -> Any:
            super().write(target, compositions)
            server.pause()
            raise error

    try:
        with pytest.raises(error):
            attempt(blog, Interrupting)
    finally:
        server.resume()
    with blog.elasticsearch() as client:  # the server may yet carry out what it was sent
        delete = client.options(ignore_status=404).indices.delete
        wait_until(lambda: not [delete(index=name) for name in physical(blog)], what="none is left")


def test_what_a_killed_plan_left_is_removed_by_a_later_one(blog: World) -> None:
    """A plan that runs keeps its scratch index, and so does another alias."""
    with blog.elasticsearch() as client:
        hidden = {"index.hidden": True}
        for name in ("syncer-plan-17-dead", f"syncer-plan-{time.time():.0f}-alive", "other-syncer-plan-17-dead"):
            client.indices.create(index=f"{blog.alias}-{name}", settings=hidden)
    of(blog)
    suffixes = sorted(name.rpartition("-")[2] for name in physical(blog))
    assert suffixes == ["alive", "dead"]
    assert f"{blog.alias}-other-syncer-plan-17-dead" in physical(blog)


@pytest.mark.parametrize(
    ("columns", "settings", "more"),
    [
        ("p.title", {}, []),
        ("p.body, p.user_id", {"refresh_interval": "7s"}, []),
        ("p.user_id::text AS _routing, p.title", {"number_of_shards": 3}, ["GET", "POST"]),
    ],
)
def test_a_trial_asks_for_nothing_twice(
    blog: World, monkeypatch: pytest.MonkeyPatch, columns: str, settings: dict[str, Any], more: list[str]
) -> None:
    """Create, look, hide, write, refresh, search, delete; only a routing has to be looked up besides."""
    methods: list[str] = []
    original = Transport.perform_request

    def perform_request(self: Transport, method: str, target: str, **options: Any) -> Any:
        methods.extend([method] * (f"{blog.alias_of('tried')}-syncer-plan-" in target))
        return original(self, method, target, **options)

    monkeypatch.setattr(Transport, "perform_request", perform_request)
    folder = blog.define("tried", f"SELECT p.id AS _id, {columns} FROM posts AS p")
    (folder / "index.json").write_text(json.dumps({"settings": settings}))
    tried = of(blog, "tried")
    assert (tried.problems, tried.documents) == ((), 250)
    assert methods == ["PUT", "GET", "PUT", *more, "PUT", "POST", "POST", "DELETE"]


def test_a_trial_leaves_nothing_in_the_log_of_deletes(blog: World) -> None:
    """Rule: a sample goes to an empty index, so routed documents have no copy on other shards to delete, or to log."""
    folder = blog.define("routed", "SELECT p.id AS _id, p.user_id::text AS _routing, p.title FROM posts AS p")
    (folder / "index.json").write_text('{"settings": {"number_of_shards": 3}}')
    assert of(blog, "routed").errors == []
    with blog.elasticsearch() as client:
        tolerant: dict[str, Any] = {"index": STATE_INDEX, "ignore_unavailable": True}
        client.indices.refresh(**tolerant)
        assert client.count(**tolerant, query={"prefix": {"index": blog.alias_of("routed")}})["count"] == 0


def test_large_documents_make_a_small_sample(blog: World) -> None:
    """A sample of documents of 2 MB is bounded by bytes."""
    blog.sql("UPDATE posts SET body = repeat('text ', 400000) WHERE id <= 9; DELETE FROM posts WHERE id > 9")
    sizes: list[int] = []

    class Counting(Index):
        def write(self, target: Target, compositions: Any) -> Any:
            sizes.append(len(compositions))
            return super().write(target, compositions)

    assert (attempt(blog, Counting).documents, sizes) == (9, [3])


# The SELECT, what is done before, the fields of its mapping, and the problem.
FOUND: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    (
        "SELECT c.post_id AS _id, jsonb_build_object('age', max(c.age)) AS inside FROM comments AS c GROUP BY 1",
        "ALTER TABLE comments ALTER age TYPE bigint; UPDATE comments SET age = post_id * 99999999999 WHERE post_id < 9",
        {"inside": {"properties": {"age": {"type": "integer"}}}},
        "error: 8 of 100 sampled documents are rejected, for example ",
    ),
    (
        "SELECT p.title AS _id, p.body FROM posts AS p",
        "UPDATE posts SET title = repeat('x', 513) WHERE id = 9; CREATE UNIQUE INDEX ON posts (title)",
        {},
        "error: 1 of 100 sampled documents is rejected",
    ),
    (
        "SELECT p.id AS _id, 1 / (p.id - 7) AS x FROM posts AS p",
        "",
        {},
        "error: 1 of 100 sampled documents cannot be built, for example 7: the SELECT fails on the data: ",
    ),
    (
        "SELECT p.id AS _id, (SELECT jsonb_agg(c.name) FROM comments AS c WHERE c.post_id = p.id) AS x FROM posts AS p",
        "",
        {"x": {"type": "keyword"}},
        "note: x: an aggregate has no ORDER BY",
    ),
)


def test_what_is_wrong_with_documents_is_found_by_trying(blog: World) -> None:
    """Documents that cannot be built or are rejected, with a share and an example."""
    blog.sql("DELETE FROM posts WHERE id > 100")
    for select, change, properties, expected in FOUND:
        blog.sql(change or "SELECT")
        messages = problems(blog, "tried", select, properties)
        assert [problem[: len(expected)] for problem in messages] == [expected], messages


# Most rows are spread over many pages: those that a query reads are what is counted, or many narrow rows.
LARGE = """
CREATE TABLE authors (id int PRIMARY KEY, name text);
CREATE TABLE kinds (id int PRIMARY KEY, name text);
CREATE TABLE entries (id int PRIMARY KEY, author int, kind int, code varchar) WITH (fillfactor = 10);
CREATE TABLE parts (id text, entry int, PRIMARY KEY (id, entry)) PARTITION BY HASH (entry);
CREATE TABLE parts0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parts1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE codes (code text PRIMARY KEY, name text);
CREATE TABLE lines (id int PRIMARY KEY, entry int) WITH (fillfactor = 10);
INSERT INTO lines SELECT i, i FROM generate_series(1, 6000) AS i;
CREATE TABLE ticks (id int PRIMARY KEY, entry int);
INSERT INTO ticks SELECT i, i FROM generate_series(1, 30000) AS i;
INSERT INTO authors SELECT i, 'author ' || i FROM generate_series(1, 3000) AS i;
INSERT INTO kinds SELECT i, 'kind ' || i FROM generate_series(1, 5) AS i;
INSERT INTO codes SELECT 'c' || i, 'code ' || i FROM generate_series(1, 1000) AS i;
INSERT INTO entries SELECT i, 1 + i % 3000, 1 + i % 5, 'c' || i FROM generate_series(1, 6000) AS i;
INSERT INTO parts SELECT repeat('x', 500) || i, i FROM generate_series(1, 8000) AS i;
ANALYZE;
"""


def test_a_missing_index_is_named_with_the_change_that_needs_it(blog: World) -> None:
    """What leads to very many documents needs none; one that exists is not proposed; each statement can be run."""
    blog.sql(LARGE)
    blog.define(
        "entry",
        """SELECT e.id AS _id, (SELECT a.name FROM authors AS a WHERE a.id = e.author) AS author,
        (SELECT k.name FROM kinds AS k WHERE k.id = e.kind) AS kind,
        (SELECT c.name FROM codes AS c WHERE c.code = e.code) AS code,
        (SELECT count(*) FROM lines AS l WHERE l.entry = e.id) AS lines,
        (SELECT count(*) FROM ticks AS t WHERE t.entry = e.id) AS ticks,
        (SELECT count(*) FROM parts AS p WHERE p.entry = e.id) AS parts FROM entries AS e""",
    )
    needed = {missing.statement: missing for missing in look(blog, "entry").missing_indexes}
    by_author = "CREATE INDEX CONCURRENTLY ON public.entries (author);"
    by_code, by_entry = by_author.replace("author", "code"), "CREATE INDEX ON public.parts (entry);"
    by_line = "CREATE INDEX CONCURRENTLY ON public.lines (entry);"
    by_tick = by_line.replace("lines", "ticks")
    assert needed.keys() == {by_author, by_code, by_entry, by_line, by_tick}
    assert (needed[by_author].change_of, needed[by_author].documents) == ("public.authors", 2)
    assert {needed[by_entry].change_of, needed[by_line].change_of} == {""}
    require_helpful(blog, "entry", *needed)
    blog.define("pair", "SELECT l.id::text || ':' || l.entry::text AS _id, l.entry FROM lines AS l")
    (composed,) = look(blog, "pair").missing_indexes
    assert "lines (((id::text || ':'::text) || entry::text));" in composed.statement
    require_helpful(blog, "pair", composed.statement)


JOINED = (
    "SELECT p.id AS _id, u.name FROM posts AS p JOIN users AS u ON u.id = p.user_id",
    """SELECT c.id AS _id, u.name FROM comments AS c JOIN posts AS p ON p.id = c.post_id
    JOIN users AS u ON u.id = p.user_id""",
    """SELECT u.id AS _id, (SELECT count(*) FROM comments AS c JOIN posts AS p ON p.id = c.post_id
    WHERE p.user_id = u.id) AS comments FROM users AS u""",
)


def test_a_table_is_read_once_for_all_changed_rows_that_are_tried(blog: World) -> None:
    """Which of twenty rows leads to the most documents is one join, and not one for each of them."""
    for select in JOINED:
        folder = blog.define("shown", select)
        with blog.connect() as connection, closing(Tries(connection, seconds=60)) as tries:
            for use in analyze.analyse(connection, definition.load(folder)).tables.values():
                list(cost.of_changes(tries, "shown", use))
            [(scans,)] = connection.execute("SELECT max(seq_scan) FROM pg_stat_xact_user_tables").fetchall()
        assert 1 < scans < cost.SAMPLE_ROWS, select


def test_a_missing_index_on_the_elements_of_an_array_is_named(blog: World) -> None:
    """A GIN index finds the rows whose array has an element; the statement can be run, and helps."""
    blog.sql(
        """CREATE TABLE tags (id int PRIMARY KEY, name text);
        CREATE TABLE sheets (id int PRIMARY KEY, tag_ids int[], note text);
        INSERT INTO tags SELECT i, 't' || i FROM generate_series(1, 6000) AS i;
        INSERT INTO sheets SELECT i, ARRAY[i], repeat('x', 500) FROM generate_series(1, 6000) AS i;
        ANALYZE tags, sheets"""
    )
    blog.define(
        "sheet",
        """SELECT s.id AS _id, (SELECT jsonb_agg(t.name ORDER BY t.id) FROM tags AS t
        WHERE t.id = ANY (s.tag_ids)) AS tags FROM sheets AS s""",
    )
    (missing,) = look(blog, "sheet").missing_indexes
    assert missing.statement == "CREATE INDEX CONCURRENTLY ON public.sheets USING gin (tag_ids);"
    require_helpful(blog, "sheet", missing.statement)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("timestamptz", "extract(epoch FROM at AT TIME ZONE 'UTC')::text"),
        ("date", "(at - '1970-01-01'::date)::text"),
        ("timestamp(3)", "extract(epoch FROM at)::text"),
        ("int4range", ""),
    ],
)
def test_a_key_whose_text_no_index_can_have_gets_one_that_it_can(blog: World, type_: str, text: str) -> None:
    """What plan proposes is tried: it can be run, and helps once select.sql makes such an _id."""
    value = "int4range(i, i + 1)" if type_ == "int4range" else "'2026-01-01'::date + i"
    blog.sql(f"CREATE TABLE marks (id int, at {type_}, note text, PRIMARY KEY (id, at))")
    blog.sql(f"INSERT INTO marks SELECT i, {value}, repeat('x', 500) FROM generate_series(1, 6000) AS i; ANALYZE marks")
    select = "SELECT m.id::text || ':' || {} AS _id, m.note FROM marks AS m"
    blog.define("mark", select.format("m.at::text"))
    (missing,) = look(blog, "mark").missing_indexes
    if not text:
        assert missing.statement.startswith("-- no index can find this _id of public.marks")
        return
    assert "once select.sql" in missing.condition
    blog.sql(missing.statement.replace(" CONCURRENTLY", "") + " ANALYZE marks")
    (hint,) = look(blog, "mark").missing_indexes
    assert hint.statement.startswith("-- public.marks has an index for another _id: make it so in select.sql: (")
    blog.sql("DROP INDEX marks_expr_idx")
    blog.define("mark", select.format(text.replace("at", "m.at", 1) if type_ == "date" else text))
    require_helpful(blog, "mark", missing.statement)


DROPPED = {
    "DROP INDEX by_author": "author",
    "DROP INDEX by_code; CREATE INDEX ON entries (kind, code)": "code",
    # The one that the first fix has created.
    "DROP INDEX entries_author_idx; CREATE INDEX ON entries ((author + 0))": "author",
}
"""What is done to the indexes of entries, and the column that is not found by one then."""


def test_an_index_that_is_dropped_is_named_by_doctor(blog: World) -> None:
    """Also without a plan: it finds that changes read a whole table, and what it proposes can be run and helps."""
    blog.sql(LARGE)
    blog.sql("CREATE INDEX by_author ON entries (author); CREATE INDEX by_code ON entries (code); ANALYZE entries")
    blog.define(
        "entry",
        """SELECT e.id AS _id, (SELECT a.name FROM authors AS a WHERE a.id = e.author) AS author,
        (SELECT c.name FROM codes AS c WHERE c.code = e.code) AS code FROM entries AS e""",
    )
    blog.apply()
    assert doctor.is_well(doctor.look(blog, "postgres.indexes"))
    for statement, column in DROPPED.items():
        blog.sql(statement)
        (finding,) = doctor.look(blog, "postgres.indexes")
        assert (finding.severity, f"public.{column}s" in finding.found) == (CheckSeverity.CONSIDER, True), statement
        doctor.fix(blog, finding)
        blog.sql("ANALYZE entries")
        assert doctor.is_well(doctor.look(blog, "postgres.indexes")), statement


def test_an_id_that_no_index_finds_is_named_by_doctor(blog: World) -> None:
    """A table that was empty when it was applied has grown; a document whose table is gone hides no other's."""
    blog.sql("CREATE TABLE empty (a int, b text, PRIMARY KEY (a, b)); CREATE TABLE other (id int PRIMARY KEY)")
    blog.define("pair", "SELECT e.a::text || ':' || e.b AS _id, e.b FROM empty AS e")
    blog.define("gone", "SELECT o.id AS _id FROM other AS o")
    blog.apply()
    blog.sql("INSERT INTO empty SELECT g, repeat('x', 100) FROM generate_series(1, 30000) AS g; ANALYZE empty")
    blog.sql("INSERT INTO other VALUES (1); DROP TABLE other")  # so that the document is suspended
    with following(blog) as follower:
        follower.handle()
    (finding,) = doctor.look(blog, "postgres.triggers")
    assert (finding.found, finding.fix) == ("public.other is gone, or has another name", "What to do: syncer status")
    (finding,) = doctor.look(blog, "postgres.indexes")
    assert (finding.severity, "build a document of pair" in finding.found) == (CheckSeverity.CONSIDER, True)
    doctor.fix(blog, finding)
    blog.sql("ANALYZE empty")
    assert doctor.is_well(doctor.look(blog, "postgres.indexes"))


def require_helpful(blog: World, name: str, *statements: str) -> None:
    """The statements can be run, and nothing is missing then."""
    with blog.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())
    blog.sql("ANALYZE")
    assert look(blog, name).missing_indexes == ()


_MARKED = "SELECT i.id AS _id, i.name, m.* FROM items AS i {} AS m ON m.item_id = i.id"
WHOLE = {
    "a grouped view": _MARKED.format("JOIN counted"),
    "the first of each": _MARKED.format(
        "LEFT JOIN (SELECT DISTINCT ON (item_id) item_id, v FROM marks ORDER BY item_id, id)"
    ),
    "a window": _MARKED.format(
        "JOIN (SELECT item_id, v, row_number() OVER (PARTITION BY item_id ORDER BY id) AS n FROM marks)"
    )
    + " AND m.n = 2",
    "a set": _MARKED.format(
        "LEFT JOIN (SELECT item_id FROM marks WHERE v = 3 UNION SELECT id FROM items WHERE id < 9)"
    ),
}
"""SELECTs with what Postgres computes for all documents before it joins some."""


def test_a_build_reads_what_its_documents_need(empty_world: World) -> None:
    """Whatever is grouped, made distinct, numbered or united: plan tries two forms, and apply stores the better one."""
    world = empty_world
    world.sql(
        """
        CREATE TABLE items (id int PRIMARY KEY, name text);
        CREATE TABLE marks (id int PRIMARY KEY, item_id int, v int);
        CREATE VIEW counted AS SELECT item_id, count(*) AS marks FROM marks GROUP BY item_id;
        INSERT INTO items SELECT i, 'item' FROM generate_series(1, 600) AS i;
        INSERT INTO marks SELECT i, i % 600 + 1, i / 600 % 5 FROM generate_series(1, 60000) AS i;
        CREATE INDEX ON marks (item_id); ANALYZE items, marks;
        """
    )
    world.migrate()
    world.use()
    single = "SELECT i.id AS _id, (SELECT count(*) FROM marks AS m WHERE m.item_id = i.id) AS n FROM items AS i"
    selects = dict(enumerate([single, *WHOLE.values()]))
    world.documents = tuple(f"items{number}" for number in selects)
    for number, select in selects.items():
        world.define(f"items{number}", select)
    world.prints("apply", "--yes")
    with world.connect() as connection:
        active = {document.name: document for document in registry.documents(connection)}
        assert [active[name].apart_max > 1 for name in world.documents] == [False, *[True] * len(WHOLE)]
        for document in active.values():
            query = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}").format(
                queries.query_of(queries.BUILD, document, documents=1)
            )
            ((explained,),) = connection.execute(query, (["590"],)).fetchall()
            root = json.loads(explained)[0]["Plan"]
            assert root["Shared Hit Blocks"] + root["Shared Read Blocks"] < 150
            assert queries.current(connection, document, ["7", "07"], seconds=0).keys() == {"7"}
    world.daemon()
    world.sql("UPDATE items SET name = 'other' WHERE id IN (3, 7); DELETE FROM items WHERE id = 8")
    world.sql("UPDATE marks SET v = 3 WHERE item_id = 11; DELETE FROM marks WHERE item_id = 12")
    world.wait_until_level()
    assert "Nothing to do" in world.syncer("apply", "--yes").stdout


COUNTED = "SELECT u.id AS _id, (SELECT count(*) FROM {} WHERE m.user_id = u.id) AS n FROM users AS u"
COSTLY = {
    "materialized": f"WITH m AS MATERIALIZED (TABLE marks) {COUNTED.format('m')}",
    "without an equality": COUNTED.format("marks AS m").replace("m.user_id = u.id", "m.user_id % 7 < u.id"),
    "apart from its condition": COUNTED.format("(TABLE marks OFFSET 0) AS m"),
}


@pytest.mark.parametrize("select", COSTLY.values(), ids=COSTLY.keys())
def test_what_a_build_costs_is_said_if_no_index_is_known_to_help(
    blog: World, monkeypatch: pytest.MonkeyPatch, select: str
) -> None:
    """With the figure, before apply, and after VACUUM lets an index stand for the table; as advised, it is cheap."""
    for module in (cost, trial):  # a machine that has much to do finishes its tries, too
        monkeypatch.setattr(module, "SECONDS_MAX", 60.0)
    blog.sql(
        """CREATE TABLE marks (id int PRIMARY KEY, user_id int, note text); CREATE INDEX ON marks (user_id);
        INSERT INTO marks SELECT i, i, repeat('x', 300) FROM generate_series(1, 30000) AS i;
        INSERT INTO users (id, name, email) VALUES (7001, 'n', ''); ANALYZE marks, users"""
    )
    blog.define("counted", select, marks="SELECT m.user_id::bigint AS _id FROM %(rows)s AS m")
    for _ in range(2):
        (note,) = [problem for problem in problems(blog, "counted", select) if "to build one document" in problem]
        assert re.match(r"note: to build one document takes [\d,.]+ ms, and syncer knows no index", note)
        with psycopg.connect(blog.dsn, autocommit=True) as connection:
            connection.execute("VACUUM marks")
    assert problems(blog, "counted", COUNTED.format("marks AS m")) == []


WIDE = {
    "a text": "string_agg(md5((i * g)::text), ' ')",
    "compressed": "string_agg('word ' || (i * g % 100), ' ')",
    "JSON": "jsonb_agg(jsonb_build_object('v', md5((i * g)::text)))",
    "an array": "array_agg(md5((i * g)::text))",
}


@pytest.mark.parametrize("content", WIDE.values(), ids=WIDE.keys())
def test_the_size_of_a_document_is_no_cost_that_another_select_would_save(blog: World, content: str) -> None:
    """Postgres reads pages for the values that the document shows."""
    blog.sql(f"""
        CREATE TABLE papers AS SELECT i AS id, {content} AS body
        FROM generate_series(1, 4) AS i, generate_series(1, 60000) AS g GROUP BY i;
        ALTER TABLE papers ADD PRIMARY KEY (id); ANALYZE papers
    """)
    select = "SELECT p.id AS _id, p.body FROM papers AS p"
    assert not [problem for problem in problems(blog, "papers", select) if "to build one document" in problem]


def test_a_cast_that_fails_on_other_rows_is_a_warning(blog: World) -> None:
    """WHERE keeps it from the SELECT, and not from the query that finds the documents of a changed row."""
    blog.sql("""
        CREATE TABLE "Acts" (id int PRIMARY KEY, "Subject" text);
        INSERT INTO "Acts" VALUES (1, '1'), (2, 'x2')
    """)
    select = """SELECT a.id AS _id, (SELECT u.name FROM users AS u WHERE {}) AS name
        FROM "Acts" AS a WHERE a."Subject" !~ 'x'"""
    (warning,) = problems(blog, "act", select.format('u.id = a."Subject"::bigint'))
    assert "a change of public.users refreshes every document" in warning
    assert problems(blog, "act", select.format('u.id::text = a."Subject"')) == []


def test_a_field_that_depends_on_a_setting_is_noted(blog: World) -> None:
    """A date, an hour and an interval do; an instant that is shown with its offset does not."""
    blog.sql("UPDATE posts SET created = '2026-11-26 23:30:00Z'")
    select = """SELECT p.id AS _id, p.created, p.created::date::text AS b, to_char(p.created, 'HH24') AS a,
        (p.created - 'epoch')::text AS i FROM posts AS p"""
    notes = {problem.partition(". syncer uses ")[0] for problem in problems(blog, "two", select)}
    select = select.replace(" AS i", " AS i, to_tsvector(p.title || ' of the') AS t")
    notes |= {problem.partition(". syncer uses ")[0] for problem in problems(blog, "two", select)}
    settings = {"a, b: depends on TimeZone", "b: depends on DateStyle", "i: depends on IntervalStyle"}
    settings |= {"t: depends on default_text_search_config"}
    assert notes == {f"note: {setting}" for setting in settings}


def test_writers_beside_plan_make_no_note(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs with another setting is seen in one snapshot: what writers change meanwhile is no difference."""
    read = queries.rows

    def beside_a_writer(*arguments: Any, **options: Any) -> Any:
        rows = read(*arguments, **options)
        blog.sql("UPDATE posts SET title = title || 'x', user_id = 1 + user_id % 50; UPDATE comments SET age = age + 1")
        return rows

    monkeypatch.setattr(queries, "rows", beside_a_writer)
    select = """SELECT p.id AS _id, p.title, p.user_id,
        (SELECT u.name FROM users AS u WHERE u.id = p.user_id) AS author,
        (SELECT jsonb_agg(c.age ORDER BY c.id) FROM comments AS c WHERE c.post_id = p.id) AS ages FROM posts AS p"""
    assert problems(blog, "busy", select) == []


def test_every_refusal_of_every_document_is_listed(blog: World) -> None:
    """What is wrong with one document hides nothing that is wrong with another."""
    blog.sql("CREATE TABLE tags (name text PRIMARY KEY)")
    blog.apply()
    counted = "SELECT p.id AS _id, (SELECT count(*) FROM users) AS u, (SELECT max(name) FROM tags) AS c FROM posts AS p"
    later = "SELECT p.id AS _id, (SELECT count(*) FROM comments AS c WHERE c.post_id > p.id) AS later FROM posts AS p"
    blog.define("counted", counted)
    blog.define("later", later)
    edit(blog, "select.sql", "p.title", "p.tilte")
    (blog.define("torn", "SELECT p.id AS _id FROM posts AS p") / "index.json").write_text("{")
    blog.define("well", "SELECT u.id AS _id, u.name FROM users AS u")
    previewed = look(blog)
    refusals = {
        document.name: "".join(problem.message for problem in document.problems) for document in previewed.documents
    }
    assert refusals.pop("well") == ""
    expected = {"counted": "public.users, public.tags", "later": "c.post_id > p.id is no equality"}
    expected |= {"blogpost": "tilte", "torn": "not valid JSON"}
    assert {name for name, words in expected.items() if words in refusals[name]} == refusals.keys()
    assert previewed.has_errors
    # A folder that is broken today does not make its document look forgotten, nor its tables released.
    assert (previewed.forgotten, previewed.released) == ((), ())


def test_apply_changes_nothing_if_one_of_many_is_wrong(blog: World) -> None:
    """One bad definition leaves every alias, index, trigger and revision as it was, though others have changed."""
    blog.apply()
    state_before = (traces(blog), physical(blog))
    blog.define("user", "SELECT u.id AS _id, u.name FROM users AS u")
    edit(blog, "select.sql", "p.body,", "upper(p.body) AS body,")
    for select, mappings, expected in (
        ("SELECT u.id AS _id, u.name FROM users AS u", {"dynamic": "strict"}, "50 of 50 sampled documents"),
        ("SELECT u.id AS _id, 1 / (u.id % 2) AS n FROM users AS u", None, "division by zero"),
    ):
        blog.define("user", select, mappings)
        applied = blog.syncer("apply", "--yes")
        assert applied.returncode == 1
        assert expected in applied.stderr
    assert (traces(blog), physical(blog)) == state_before


def test_a_function_that_names_another_without_its_schema_is_explained(blog: World) -> None:
    """It works in psql, where public is in the search_path."""
    blog.sql("CREATE FUNCTION clean(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower(t)'")
    blog.sql("CREATE FUNCTION slug(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN clean(t); END'")
    blog.sql("CREATE FUNCTION inlined(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT clean(t)'")
    select = "SELECT p.id AS _id, slug(p.title) AS f FROM posts AS p"
    (problem,) = problems(blog, "slugs", select)
    assert "names something without its schema" in problem
    assert "ALTER FUNCTION public.slug(text) SET search_path = …;" in problem
    (problem,) = problems(blog, "inline", "SELECT p.id AS _id FROM posts AS p WHERE inlined(title) = ''")
    assert "ALTER FUNCTION inlined(…) SET search_path = …;" in problem
    blog.sql("ALTER FUNCTION slug(text) SET search_path = public")
    assert problems(blog, "slugs", select) == []


SIZES = (
    "SELECT u.id AS _id, u.name FROM users AS u",
    "SELECT p.id AS _id, u.name FROM posts AS p JOIN users AS u ON u.id = p.user_id",
    """SELECT p.id AS _id, u.name, (SELECT jsonb_agg(c.comment ORDER BY c.id) FROM comments AS c
       JOIN users AS a ON a.name = c.name WHERE c.post_id = p.id) AS said,
       (SELECT count(*) FROM posts AS s WHERE s.user_id = u.id) AS n
       FROM posts AS p JOIN users AS u ON u.id = p.user_id""",
)


def test_an_analysis_sends_as_many_statements_for_many_tables_as_for_one(blog: World) -> None:
    """It asks once for all tables, columns and ways to documents."""
    sent: list[object] = []

    class Counting(psycopg.RawCursor[Any]):
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Self:
            sent.append(query)
            return super().execute(query, *arguments, **options)

    counts = []
    with blog.connect() as connection:
        connection.cursor_factory = Counting
        for select in SIZES:
            sent.clear()
            asked = Definition(name="d", index="d", select=select, index_body={}, affects={}, folder=Path("d"))
            analyze.analyse(connection, asked)
            counts.append(len(sent))
    assert counts[0] == counts[1] == counts[2] < 25
