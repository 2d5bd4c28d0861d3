"""Plan against real servers: what it says of indexes, costs, targets and documents is what is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest

from syncer.apply import activate, plan
from syncer.apply.plan import PlannedChange
from syncer.apply.preview import cost, estimate, forecast, problems
from syncer.apply.preview.forecast import DocumentForecast, Forecast
from syncer.apply.preview.problems import ProblemKind
from syncer.base.errors import DefinitionError, IndexingError
from syncer.base.model import Target
from syncer.documents import definition
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices
from syncer.lineage import remarks
from syncer.lineage.dependencies import Lookup
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, REPOSITORY, World, wait_until

POSTS = """
INSERT INTO users (id, name, email) SELECT i, 'user ' || i, i || '@example.com' FROM generate_series(1, 50) AS i;
INSERT INTO posts (id, user_id, title, body) SELECT i, 1 + i % 50, 'title ' || i, 'body' FROM generate_series(1, 500) i;
INSERT INTO comments (post_id, name, comment, age) SELECT 1 + i % 500, 'bob', 'nice', 7 FROM generate_series(1, 900) i;
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


@contextmanager
def servers(world: World) -> Iterator[tuple[Any, Index, Indices]]:
    """Syncer's own view of both servers."""
    with world.connect() as connection, world.index() as index, world.indices() as indices:
        yield connection, index, indices


def look(world: World, only: str | None = None) -> Forecast:
    """What ``syncer plan`` finds."""
    with servers(world) as (connection, index, indices):
        return forecast.read(connection, index, indices, world.config, only=only)


def of_blogpost(world: World) -> DocumentForecast:
    """What it finds of the blogpost."""
    (found,) = look(world, "blogpost").documents
    return found


def edit(world: World, file: str, old: str, new: str) -> None:
    """Change the blogpost's definition."""
    path = world.document_folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def add_document(world: World, name: str, select: str, mappings: dict[str, Any] | None = None) -> Path:
    """Another document beside the blogpost."""
    folder = world.config / "documents" / name
    folder.mkdir()
    (folder / "document.yaml").write_text(f"index: {world.alias}-{name}\n")
    (folder / "select.sql").write_text(select)
    (folder / "index.json").write_text(json.dumps({"mappings": mappings or {}}))
    return folder


def physical(world: World) -> dict[str, Any]:
    """Every index of this world, hidden ones too, as it is."""
    with world.elasticsearch() as client:
        names = client.indices.get(index=f"{world.alias}*", expand_wildcards="all").body
        return {name: (body["mappings"], body["settings"]["index"]["uuid"]) for name, body in names.items()}


def traces(world: World) -> list[tuple[Any, ...]]:
    """What plan could leave in Postgres."""
    return world.sql(
        "SELECT 'relation', oid::regclass::text FROM pg_class WHERE relnamespace <> 'pg_catalog'::regnamespace "
        "UNION ALL SELECT 'trigger', tgname FROM pg_trigger "
        "UNION ALL SELECT 'document', name || revision || coalesce(loaded_at::text, '') FROM syncer.document "
        "UNION ALL SELECT 'lock', classid || '/' || objid FROM pg_locks WHERE locktype = 'advisory' "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY 1, 2"
    )


# What becomes of the index


def test_nothing_is_changed_by_looking(blog: World) -> None:
    """Neither the database nor any index is another one after a plan, whatever it planned."""
    before = (traces(blog), physical(blog))
    assert of_blogpost(blog).outcome is PlannedChange.NEW
    assert (traces(blog), physical(blog)) == before
    blog.apply()
    before = (traces(blog), physical(blog))
    edit(blog, "index.json", *AS_KEYWORD)
    assert of_blogpost(blog).outcome is PlannedChange.REBUILD
    assert (traces(blog), physical(blog)) == before


IN_PLACE = (
    ("index.json", '"body": { "type": "text" }', '"body": { "type": "text" }, "views": { "type": "long" }'),
    ("index.json", '"number_of_replicas": 0', '"number_of_replicas": 0, "refresh_interval": "9s"'),
    ("select.sql", "p.body,", "upper(p.body) AS body,"),
)


def test_plan_and_apply_agree(blog: World) -> None:
    """What plan calls in place is done in place by apply; what needs a new index gets one, beside the others."""
    adored = add_document(blog, "adored", "SELECT p.id AS _id, p.title FROM posts AS p", {"properties": {}})
    blog.apply()
    before = physical(blog).keys()
    edit(blog, "select.sql", "-- A blog post", "-- A post")
    assert of_blogpost(blog).outcome is PlannedChange.UNCHANGED
    for file, old, new in IN_PLACE:
        edit(blog, file, old, new)
    found = of_blogpost(blog)
    assert (found.outcome, found.reason, found.refusals) == (PlannedChange.CHANGED, None, ())
    blog.apply()
    assert physical(blog).keys() == before

    (adored / "index.json").write_text('{"mappings": {"properties": {"more": {"type": "long"}}}}')
    edit(blog, "index.json", *AS_KEYWORD)
    adored_one, planned = look(blog).documents
    assert (adored_one.outcome, planned.outcome) == (PlannedChange.CHANGED, PlannedChange.REBUILD)
    assert planned.initial_load_seconds is not None
    with servers(blog) as (connection, _, indices):
        activate.carry_out(connection, indices, plan.plan(connection, indices, definition.load_all(blog.config)))
    building = of_blogpost(blog)
    assert building.outcome is PlannedChange.BUILDING
    assert building.reason is not None
    blog.apply()
    assert physical(blog).keys() - before == {blog.index_of()}
    assert of_blogpost(blog).outcome is PlannedChange.UNCHANGED
    assert blog.differences() == []


def test_what_apply_would_fix_is_named(blog: World) -> None:
    """An incomplete index, lost triggers, and what has suspended a document."""
    blog.apply()
    blog.sql("UPDATE syncer.document SET loaded_at = NULL")
    assert of_blogpost(blog).outcome is PlannedChange.INCOMPLETE
    blog.sql("UPDATE syncer.document SET suspended = 'column title was renamed'")
    found = of_blogpost(blog)
    assert (found.suspended, found.outcome) == ("column title was renamed", PlannedChange.CHANGED)
    blog.sql("UPDATE syncer.document SET suspended = NULL; ALTER TABLE posts DISABLE TRIGGER ALL")
    assert of_blogpost(blog).outcome is PlannedChange.TRIGGERS_GONE


REFUSED_BODIES = (
    (
        '"type": "nested"',
        '"type": "nesting"',
        "No handler for type [nesting] declared on field [comments]",
        "index.json",
    ),
    ('"type": "nested"', '"type": "integer", "coerce": "wrong"', "wrong", ""),
    ('"type": "nested"', '"type": "keyword", "ignore_above": "wrong"', "wrong", ""),
    ('"number_of_replicas": 0', '"number_of_replicas": "many"', "many", ""),
)


def test_an_index_json_that_elasticsearch_refuses_is_a_refusal(blog: World) -> None:
    """What no index can be is refused with Elasticsearch's reason, and is no reason for a new index."""
    blog.apply()
    before, body = physical(blog), (blog.document_folder / "index.json").read_text()
    for old, new, says, does in REFUSED_BODIES:
        (blog.document_folder / "index.json").write_text(body.replace(old, new))
        (refusal,) = of_blogpost(blog).refusals
        assert "refuses the index.json of blogpost" in refusal.message or "field type" in refusal.message, new
        assert says in refusal.message
        assert does in refusal.hint
    with pytest.raises(IndexingError) as raised:
        blog.apply()
    assert raised.value.message == refusal.message
    add_document(
        blog, "halves", "SELECT p.id AS _id, p.views FROM posts AS p", {"properties": {"views": {"type": "x"}}}
    )
    (found,) = look(blog, "halves").documents
    assert (found.outcome, len(found.tables)) == (None, 1)
    assert physical(blog) == before


# Scratch indices


def test_no_search_sees_a_scratch_index_and_an_interrupt_leaves_none(blog: World) -> None:
    """A search of the alias with a star finds no document of a trial, and Ctrl-C in the middle of it leaves nothing."""
    found: list[int] = []

    class Interrupting(Index):
        def write(self, target: Target, compositions: Any) -> Any:
            super().write(target, compositions)
            with blog.elasticsearch() as client:
                client.indices.refresh(index=target.index_name)
                assert client.count(index=target.index_name).body["count"] == estimate.SAMPLE_DOCUMENTS
                found.append(client.count(index=f"{blog.alias}*").body["count"])
            raise KeyboardInterrupt

    with servers(blog) as (connection, _, indices), blog.elasticsearch() as client:
        step = plan.plan(connection, indices, definition.load_all(blog.config)).steps[0]
        with pytest.raises(KeyboardInterrupt):
            estimate.attempt(connection, Interrupting(client, bulk_bytes_max=8_000_000), indices, step)
    assert found == [0]
    assert physical(blog) == {}
    assert not [one for one in traces(blog) if one[0] == "lock"]


def test_what_a_killed_plan_left_is_removed_by_the_next(blog: World) -> None:
    """A scratch index that its plan could not remove goes away with the next one; an index of another alias stays."""
    with blog.elasticsearch() as client:
        client.indices.create(index=f"{blog.alias}-syncer-plan-dead", settings={"index.hidden": True})
        client.indices.create(index=f"{blog.alias}-other-syncer-plan-alive", settings={"index.hidden": True})
    of_blogpost(blog)
    assert physical(blog).keys() == {f"{blog.alias}-other-syncer-plan-alive"}


def test_two_plans_at_once_do_not_take_each_others_index_away(blog: World) -> None:
    """A plan that begins while another one tries things waits for it."""
    others: list[Thread] = []

    class Joined(Index):
        def write(self, target: Target, compositions: Any) -> Any:
            if not others:
                others.append(Thread(target=look, args=(blog,)))
                others[0].start()
                wait_until(
                    lambda: (
                        blog.sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") != []
                        or target.index_name not in physical(blog)
                    ),
                    what="the other plan waits, or has taken the index away",
                )
            return super().write(target, compositions)

    with servers(blog) as (connection, _, indices), blog.elasticsearch() as client:
        step = plan.plan(connection, indices, definition.load_all(blog.config)).steps[0]
        trial = estimate.attempt(connection, Joined(client, bulk_bytes_max=8_000_000), indices, step)
    others[0].join(DEADLINE_SECONDS)
    assert trial.rejections == ()
    assert physical(blog) == {}


# The sample


def test_documents_that_are_rejected_are_an_error(blog: World) -> None:
    """A value inside a jsonb, and an id too long, are found by trying, with the field, a share and a document."""
    blog.sql("ALTER TABLE comments ALTER age TYPE bigint; UPDATE comments SET age = 123456789 WHERE post_id = 7")
    blog.sql("DELETE FROM posts WHERE id NOT BETWEEN 1 AND 100")
    seen = look(blog)
    (problem,) = seen.documents[0].problems
    assert (problem.kind, problem.field, problem.example) == (ProblemKind.REJECTED, "comments.age", "7")
    assert (problem.documents, problem.looked_at) == (1, 100)
    assert seen.has_errors
    assert not seen.has_warnings
    blog.sql("UPDATE posts SET title = repeat('x', 513) WHERE id = 9; CREATE UNIQUE INDEX ON posts (title)")
    add_document(blog, "titled", "SELECT p.title AS _id, p.body FROM posts AS p")
    (problem,) = look(blog, "titled").documents[0].problems
    assert (problem.kind, problem.example) == (ProblemKind.REJECTED, "x" * 513)
    assert "an id has 1 to 512 bytes" in problem.message


def test_what_is_inside_a_jsonb_is_looked_at(blog: World) -> None:
    """A fraction, a text too long and a name without a mapping are warned of at any depth; what fits is not."""
    blog.sql("UPDATE posts SET views = 3 WHERE id = 5; UPDATE posts SET title = repeat('x', 300) WHERE id = 6")
    blog.sql("DELETE FROM posts WHERE id > 100")
    select = """SELECT p.id AS _id, 1 AS other, jsonb_build_object('half', p.views / 2.0, 'views', p.views,
        'title', p.title, 'other', 1, 'tags', jsonb_build_array(jsonb_build_object('share', 0.5)),
        'a.b', 1.5, 'a', jsonb_build_object('c.d', 2.5)) AS inside FROM posts AS p"""
    properties = {
        "half": {"type": "long"},
        "views": {"type": "long"},
        "title": {"type": "keyword", "ignore_above": 256},
        "tags": {"type": "nested", "properties": {"share": {"type": "byte"}}},
        "a": {"properties": {"b": {"type": "double"}, "c": {"properties": {}}}},
    }
    add_document(
        blog,
        "inner",
        select,
        {"dynamic": False, "properties": {"inside": {"dynamic": False, "properties": properties}}},
    )
    found = {one.field: (one.kind, one.documents) for one in look(blog, "inner").documents[0].problems}
    assert found == {
        "inside.half": (ProblemKind.CHANGED, 1),
        "inside.title": (ProblemKind.UNSEARCHABLE, 1),
        "inside.tags.share": (ProblemKind.CHANGED, 100),
        "inside.other": (ProblemKind.UNSEARCHABLE, 100),
        "inside.a.c.d": (ProblemKind.UNSEARCHABLE, 100),
        "other": (ProblemKind.UNSEARCHABLE, 100),
    }


def test_json_that_python_or_postgres_cannot_hold_hides_nothing(blog: World) -> None:
    """A NUL, half a pair of surrogates, or a number of 5,000 digits keeps nothing else from being looked at."""
    blog.sql("DELETE FROM posts WHERE id > 100; ALTER TABLE posts ADD more json DEFAULT '{}'")
    blog.sql(r"""UPDATE posts SET more = '{"title": "\u0000"}' WHERE id = 5""")
    blog.sql(r"""UPDATE posts SET more = '{"title": "\ud800", "half": 0.5}' WHERE id = 6""")
    blog.sql(f"""UPDATE posts SET more = '{{"many": {"9" * 5000}}}' WHERE id = 7""")
    properties = {"half": {"type": "long"}, "title": {"type": "keyword"}, "many": {"type": "keyword"}}
    select = "SELECT p.id AS _id, p.more FROM posts AS p"
    add_document(blog, "inner", select, {"properties": {"more": {"dynamic": False, "properties": properties}}})
    (found,) = look(blog, "inner").documents
    assert (found.refusals, found.outcome) == ((), PlannedChange.NEW)
    assert ("more.half", ProblemKind.CHANGED, "6") in [(one.field, one.kind, one.example) for one in found.problems]


def test_rare_values_are_looked_for_among_all_documents(blog: World) -> None:
    """One fraction that no sample may have is found by its column's type, and counted; without one, that is said."""
    select = "SELECT p.id AS _id, p.views / 2.0 AS half FROM posts AS p"
    add_document(blog, "halves", select, {"properties": {"half": {"type": "integer"}}})
    (half,) = look(blog, "halves").documents[0].problems
    assert (half.kind, half.field, half.documents, half.example) == (ProblemKind.CHANGED, "half", 0, None)
    blog.sql("UPDATE posts SET views = 3 WHERE id IN (5, 77)")
    (half,) = look(blog, "halves").documents[0].problems
    assert (half.documents, half.looked_at, half.example) == (2, None, "5")


def test_a_text_that_is_cast_to_a_date_is_noted(blog: World) -> None:
    """It may well be meant: CI lets it pass, and a cast of anything but a text says nothing."""
    mappings = {"properties": {"day": {"type": "date"}}}
    blog.sql("ALTER TABLE posts ADD COLUMN plain timestamp")
    add_document(blog, "dated", "SELECT p.id AS _id, p.plain::date AS day FROM posts AS p", mappings)
    assert look(blog, "dated").documents[0].problems == ()
    blog.sql("ALTER TABLE posts ADD COLUMN due text")
    add_document(blog, "due", "SELECT p.id AS _id, p.due::date AS day FROM posts AS p", mappings)
    (noted,) = look(blog, "due").documents[0].problems
    assert (noted.kind, noted.is_note) == (ProblemKind.STALE, True)
    assert "to_date" in noted.action


def test_a_table_that_may_not_be_read_hides_no_other_document(blog: World) -> None:
    """A role without SELECT on one table gets that said of its document, and a plan of the others."""
    add_document(blog, "secret", "SELECT s.id AS _id, s.name FROM secrets AS s")
    blog.sql("CREATE TABLE secrets (id int PRIMARY KEY, name text)")
    role = f"role_{blog.name}"
    blog.sql(
        f"CREATE ROLE {role}; GRANT SELECT ON posts, users, comments TO {role}; GRANT USAGE ON SCHEMA syncer TO {role}"
    )
    blog.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA syncer TO {role}")
    try:
        with servers(blog) as (connection, index, indices):
            connection.execute(f"SET ROLE {role}".encode())
            seen = forecast.read(connection, index, indices, blog.config)
    finally:
        blog.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
    documents = {one.name: one for one in seen.documents}
    assert "permission denied for table secrets" in documents["secret"].refusals[0].message
    assert documents["blogpost"].outcome is PlannedChange.NEW
    assert not any(table.is_owned for table in documents["blogpost"].tables)


FAILING = {
    "broken": ("1 / (p.id - 7)", "division by zero"),
    "several": ("(SELECT c.name FROM comments AS c WHERE c.post_id = p.id)", "more than one row"),
    "named": ("named(p.title)", "no name for title 7"),
}


def test_one_document_at_fault_hides_nothing(blog: World) -> None:
    """A SELECT that fails on one row, in whichever way, is said with what Postgres says; the rest is planned."""
    blog.sql("DELETE FROM comments; DELETE FROM posts WHERE id > 100")
    blog.sql("INSERT INTO comments (post_id, name, comment) VALUES (7, 'bob', 'nice'), (7, 'eve', 'good')")
    blog.sql(
        "CREATE FUNCTION named(said text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN IF said = 'title 7' THEN RAISE 'no name for %', said; END IF; RETURN said; END $$"
    )
    for name, (column, _) in FAILING.items():
        add_document(blog, name, f"SELECT p.id AS _id, {column} AS x FROM posts AS p", {"properties": {}})
    documents = {one.name: one for one in look(blog).documents}
    for name, (_, says) in FAILING.items():
        (problem,) = documents[name].problems
        assert (problem.kind, problem.documents, problem.example) == (ProblemKind.FAILS, 1, "7")
        assert says in problem.message
    assert {one.outcome for one in documents.values()} == {PlannedChange.NEW}
    assert all(one.tables and not one.refusals for one in documents.values())


def test_an_affects_query_that_fails_on_a_row_is_said(blog: World) -> None:
    """Its cost is the planner's, with what Postgres says; the plan of the document stands."""
    affects = blog.document_folder / "affects"
    affects.mkdir()
    query = "SELECT p.id / (c.id - 3) AS _id FROM posts AS p JOIN %(rows)s AS c ON p.user_id = c.id"
    (affects / "users.sql").write_text(query)
    found = of_blogpost(blog)
    (users,) = [one for one in found.tables if one.relation == "public.users"]
    assert not users.is_derived
    assert users.ways[-1].cost is not None
    assert (users.ways[-1].cost.failure, users.ways[-1].cost.seconds) == ("division by zero", None)
    assert (found.outcome, found.refusals) == (PlannedChange.NEW, ())


def test_a_count_that_fails_is_no_count_that_takes_too_long(blog: World) -> None:
    """What Postgres says of the row is what a trial says; the documents before it are tried all the same."""
    add_document(blog, "viewed", "SELECT p.id AS _id, p.title FROM posts AS p WHERE 1 / (p.views - 9) < 1")
    with servers(blog) as (connection, index, indices):
        *_, step = plan.plan(connection, indices, definition.load_all(blog.config)).steps
        blog.sql("UPDATE posts SET views = 9 WHERE id = 500")
        trial = estimate.attempt(connection, index, indices, step)
    assert (trial.documents, trial.failure, len(trial.sample)) == (None, "division by zero", estimate.SAMPLE_DOCUMENTS)


# Costs and indexes


def test_the_affected_query_is_run_on_real_rows(blog: World) -> None:
    """The number of documents for some users is the number of their posts; a plain key costs nothing."""
    tables = {one.relation: one for one in of_blogpost(blog).tables}
    (users,) = tables["public.users"].ways
    assert users.cost is not None
    assert users.cost.rows == 10 * cost.SAMPLE_ROWS
    assert users.cost.seconds is not None
    (posts,) = tables["public.posts"].ways
    assert (posts.id_column, posts.cost) == ("id", None)
    assert tables["public.users"].watched == ("id", "name")


def test_the_cost_of_a_query_is_measured_for_a_bounded_time(blog: World) -> None:
    """A query that does not finish has the planner's cost and no seconds; only scans of large tables are named."""
    blog.sql('CREATE TABLE "Large" (id int); ANALYZE "Large"; CREATE TABLE small (id int)')
    blog.sql(f'INSERT INTO "Large" SELECT generate_series(1, {cost.LARGE_ROWS}); ANALYZE "Large"')
    with blog.connect() as connection:
        found = cost.explain(connection, psycopg.sql.SQL("SELECT pg_sleep(30)"), (), seconds_max=0.2)
        assert (found.seconds, found.total > 0) == (None, True)
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)
        query = psycopg.sql.SQL('SELECT FROM public."Large", public.small')
        assert cost.explain(connection, query, (), seconds_max=5).scans == ('public."Large"',)


def lookups(*columns: str) -> list[Lookup]:
    """One lookup."""
    return [Lookup(relation="public.t", columns=columns)]


INDEXES = (
    ("CREATE INDEX ON t (a)", ("a",), False),
    ("CREATE INDEX ON t (a, b)", ("a",), False),
    ("CREATE INDEX ON t (a, b)", ("b",), True),
    ("CREATE INDEX ON t (a, b)", ("b", "a"), False),
    ('CREATE INDEX ON t (a, "C d", b)', ("b", "a"), True),
    ('CREATE INDEX ON t ("C d")', ('"C d"',), False),
    ("CREATE UNIQUE INDEX ON t (a)", ("b", "a"), False),
    ("CREATE INDEX ON t (a) WHERE b > 0", ("a",), True),
    ("CREATE INDEX ON t USING hash (a)", ("a",), False),
    ("CREATE INDEX ON t USING brin (a)", ("a",), True),
    ("CREATE INDEX ON t (a) INCLUDE (b)", ("b",), True),
    ("CREATE INDEX ON t (('x-' || a))", ("('x-'::text || a)",), False),
    ("CREATE INDEX ON t (a)", ("('x-'::text || a)",), True),
    ("CREATE INDEX ON t (lower(s))", ("(lower(s))",), False),
    ("CREATE INDEX ON t ((s ~>~ 'x'))", ("a",), True),
    ("CREATE INDEX ON t ((point(a, b) ~= point(b, a)), a)", ("a",), True),
)  # fmt: skip
"""An index, what is compared, and whether another one is missing."""


def test_an_index_is_missing_unless_one_leads_with_the_columns(empty_world: World) -> None:
    """Only a whole, valid b-tree or hash index that begins with what is compared, in any order, serves a lookup."""
    empty_world.sql('CREATE TABLE t (a int, b int, "C d" int, s text)')
    with empty_world.connect() as connection:
        connection.execute("SET search_path TO public")
        for index, columns, is_missing in INDEXES:
            with connection.transaction(force_rollback=True):
                connection.execute(index.encode())
                missing = cost.missing_indexes(connection, lookups(*columns))
                assert bool(missing) == is_missing, (index, columns)
                for one in missing:
                    connection.execute(one.statement.replace("CONCURRENTLY ", "").encode())
                    assert cost.missing_indexes(connection, lookups(*columns)) == ()


def test_a_partitioned_table_gets_an_index_that_it_takes(empty_world: World) -> None:
    """Postgres refuses CONCURRENTLY on a partitioned table, so it is left out there; its rows are its partitions'."""
    empty_world.sql("CREATE TABLE t (a int) PARTITION BY LIST (a); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)")
    with empty_world.connect() as connection:
        (missing,) = cost.missing_indexes(connection, lookups("a"))
        connection.execute(missing.statement.encode())
        assert cost.missing_indexes(connection, lookups("a")) == ()
        assert cost.sample(connection, "public.t", {"a"}) == "[]"
        connection.execute("INSERT INTO public.t VALUES (1), (1)")
        connection.execute("ANALYZE public.t1")
        assert cost.rows(connection, "public.t") == 2


def test_the_shipped_documents_miss_nothing(empty_world: World) -> None:
    """Every example can be applied as it is, with every index that it needs, and no field that does not fit."""
    for schema_file in ("blog.sql", "filesystem.sql"):
        empty_world.sql((REPOSITORY / "syncer" / "demo" / schema_file).read_text())
    shutil.rmtree(empty_world.config)
    shutil.copytree(REPOSITORY / "config", empty_world.config)
    seen = look(empty_world)
    assert len(seen.documents) == len(list((REPOSITORY / "config" / "documents").iterdir()))
    assert [refusal for one in seen.documents for refusal in one.refusals] == []
    assert [problem for one in seen.documents for problem in one.problems] == []
    assert seen.missing_indexes == ()


def test_an_id_that_is_an_expression_wants_an_index_on_it(blog: World) -> None:
    """The printed statement makes the index that serves documents with a made-up id."""
    add_document(blog, "named", "SELECT 'entry-' || p.id AS _id, p.title FROM posts AS p")
    (missing,) = look(blog, "named").missing_indexes
    with blog.connect() as connection:
        connection.execute(missing.statement.encode())
    assert look(blog, "named").missing_indexes == ()


# Refusals


def test_every_refusal_of_every_document_is_listed(blog: World) -> None:
    """What is wrong with one document, or one table of it, hides nothing that is wrong with another."""
    blog.sql("CREATE TABLE log (line text)")
    blog.apply()
    add_document(
        blog,
        "adrift",
        "SELECT p.id AS _id, (SELECT count(*) FROM users) AS u, (SELECT max(name) FROM tags) AS c FROM posts AS p",
    )
    blog.sql("CREATE TABLE tags (name text PRIMARY KEY)")
    add_document(blog, "keyless", "SELECT p.id AS _id, l.line FROM posts AS p LEFT JOIN log AS l ON l.line = p.title")
    edit(blog, "select.sql", "p.title", "p.tilte")
    (add_document(blog, "torn", "SELECT p.id AS _id FROM posts AS p") / "index.json").write_text("{")
    add_document(blog, "well", "SELECT u.id AS _id, u.name FROM users AS u")
    seen = look(blog)
    refusals = {one.name: [refusal.message for refusal in one.refusals] for one in seen.documents}
    assert [name for name, said in refusals.items() if not said] == ["well"]
    assert "public.users" in refusals["adrift"][0]
    assert "public.tags" in refusals["adrift"][0]
    assert "no primary key" in refusals["keyless"][0]
    assert "tilte" in refusals["blogpost"][0]
    assert "not valid JSON" in refusals["torn"][0]
    assert seen.has_errors
    # A folder that is broken today does not make its document look forgotten, nor its tables released.
    assert (seen.forgotten, seen.released) == ((), ())
    edit(blog, "select.sql", "p.tilte", "p.title")
    blog.sql("DROP TABLE comments")
    found = of_blogpost(blog)
    assert (found.index, "comments" in found.refusals[0].message) == (blog.alias, True)


# A schema of some size


STORE = Path(__file__).with_name("store.sql")
FILM = "SELECT f.film_id AS _id, f.title, f.rating, f.release_year, f.rental_rate AS price FROM rental.film AS f"
FILM_FIELDS = {
    "title": {"type": "text"},
    "rating": {"type": "keyword"},
    "release_year": {"type": "integer"},
    "price": {"type": "double"},
}
REVIEW = "SELECT r.review_id AS _id, r.stars, a.title FROM music.review AS r JOIN music.album AS a ON a.ean = r.ean"
TRACK = """SELECT t.isrc AS _id, t.name, a.title AS album, r.name AS artist FROM music.track AS t
LEFT JOIN music.album AS a USING (album_id) LEFT JOIN music.artist AS r USING (artist_id)"""


@pytest.fixture
def store(empty_world: World) -> World:
    """Records and films, with the documents film, review and track; nothing is active."""
    shutil.rmtree(empty_world.config / "documents")
    (empty_world.config / "documents").mkdir()
    empty_world.sql(STORE.read_text())
    empty_world.migrate()
    add_document(empty_world, "film", FILM, {"dynamic": "strict", "properties": FILM_FIELDS})
    add_document(empty_world, "review", REVIEW, {"dynamic": "strict"} | _texts("stars", "title"))
    add_document(empty_world, "track", TRACK, {"dynamic": "strict"} | _texts("name", "album", "artist"))
    return empty_world


def _texts(*names: str) -> dict[str, Any]:
    return {"properties": {key: {"type": "keyword"} for key in names}}


def write(world: World, name: str, **files: object) -> None:
    """Put other files into a document's folder."""
    for file, content in files.items():
        path = world.config / "documents" / name / {"select": "select.sql", "index": "index.json"}[file]
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def state(world: World) -> tuple[Any, ...]:
    """All that apply could change: indices with their aliases, triggers, documents."""
    with world.elasticsearch() as client:
        return client.indices.get(index=f"{world.alias}*", expand_wildcards="all").body, traces(world)


REJECTED = {"dynamic": "strict", "properties": FILM_FIELDS | {"rating": {"type": "long"}}}
WRONG_FILMS: tuple[tuple[Any, str, str], ...] = (
    (None, FILM.replace("f.title,", "f.title, f.title AS _source,"), "_source cannot be a field"),
    (None, FILM.replace("f.title,", "f.title, f.length,"), "length: 200 of 200 sampled documents are rejected"),
    ({"settings": {"number_of_shards": 2}, "mappings": REJECTED}, FILM, "rating: 200 of 200 sampled documents are"),
    ({"mappings": {"properties": FILM_FIELDS | {"rating": {"type": "keywrd"}}}}, FILM, "keywrd"),
    (None, FILM.replace("f.rental_rate", "1 / (f.film_id % 2)"), "division by zero"),
)


def test_apply_changes_nothing_if_one_of_many_is_wrong(store: World) -> None:
    """One bad definition leaves every alias, index, trigger and revision as it was, though others have changed."""
    with store.elasticsearch() as client:
        client.indices.create(index=f"{store.alias}-track")
        before = state(store)
        with pytest.raises(IndexingError, match="needs the name for an alias"):
            store.apply()
        assert state(store) == before
        client.indices.delete(index=f"{store.alias}-track")
    store.apply()
    before = state(store)
    index = (store.config / "documents" / "film" / "index.json").read_text()
    add_document(store, "artist", "SELECT a.artist_id AS _id, a.name FROM music.artist AS a")
    write(store, "track", select=TRACK.replace("t.name,", "upper(t.name) AS name,"))
    for body, select, says in WRONG_FILMS:
        write(store, "film", select=select, index=index if body is None else body)
        with pytest.raises(DefinitionError) as raised:
            forecast.require_applicable(look(store, "film"), despite_dead_lettered=False)
        assert says in raised.value.message
    applied = store.syncer("apply", "--yes")
    assert applied.returncode == 1
    assert says in applied.stderr
    assert state(store) == before


def test_a_table_that_stays_locked_leaves_every_index_untouched(store: World) -> None:
    """Triggers come before indices: if they cannot be created in time, no alias leads to an empty index."""
    with store.connect() as connection, connection.transaction():
        connection.execute("LOCK TABLE rental.film IN ROW EXCLUSIVE MODE")
        applied = store.syncer("apply", "--yes", "--lock-timeout", "1")
    assert applied.returncode == 1
    assert "film" in applied.stderr
    assert physical(store) == {}
    store.apply()
    store.documents = ("film", "review", "track")
    assert store.differences() == []


# Keys, joins and indexes of that schema


ADRIFT = (
    (
        "SELECT a.album_id AS _id FROM music.album AS a JOIN music.review AS r ON r.ean = a.ean OR r.stars = 1",
        "OR (r.stars = 1) is no equality",
        "LIMIT",
    ),
    (
        (
            "SELECT a.album_id AS _id, t.name FROM music.album a JOIN music.artist x ON true "
            "LEFT JOIN music.track t ON t.album_id = a.album_id AND t.name = x.name"
        ),
        "the outer join on t.name = x.name keeps rows without a match",
        "no equality;",
    ),
    (
        (
            "SELECT a.album_id AS _id, s.title FROM music.album a "
            "JOIN (SELECT f.film_id, f.title FROM rental.film f ORDER BY 2 LIMIT 5) s ON s.film_id = a.album_id"
        ),
        "LIMIT, OFFSET, DISTINCT ON or a window",
        "outer join",
    ),
)


def test_a_refusal_names_what_is_at_fault(store: World) -> None:
    """The join, the condition or the query that leads nowhere, and no cause that does not apply."""
    for number, (select, _, _) in enumerate(ADRIFT):
        add_document(store, f"adrift{number}", select)
    for number, (_, says, not_) in enumerate(ADRIFT):
        (refusal,) = look(store, f"adrift{number}").documents[0].refusals
        first = refusal.message.splitlines()[0]
        assert says in first
        assert not_ not in first


def test_a_cast_that_an_index_does_not_mind_is_served_by_it(store: World) -> None:
    """Keys of varchar and of a domain over it: the planner uses the indexes that are there, and none is advised."""
    playlist = """SELECT p.playlist_id AS _id, (SELECT jsonb_agg(t.name) FROM music.playlist_track AS l
        JOIN music.track AS t ON t.isrc = l.isrc WHERE l.playlist_id = p.playlist_id) AS tracks FROM music.playlist p"""
    add_document(store, "playlist", playlist)
    assert look(store).missing_indexes == ()
    with store.connect() as connection:
        connection.execute("SET enable_seqscan = off")
        for lookup in ("music.review AS t WHERE t.ean::text", "music.track AS t WHERE t.isrc::text"):
            used = connection.execute(f"EXPLAIN SELECT FROM {lookup} = 'x'".encode()).fetchall()
            assert "Index Cond" in str(used), used
    store.sql("DROP INDEX music.review_ean_idx; CREATE INDEX ON music.review (ean) WHERE ean IS NOT NULL")
    assert look(store, "review").missing_indexes == ()
    store.sql("DROP INDEX music.review_ean_idx; CREATE INDEX ON music.review (ean) WHERE ean <> ''")
    (missing,) = look(store, "review").missing_indexes
    assert missing.statement == "CREATE INDEX CONCURRENTLY ON music.review (ean);"


REMARKED = {
    "p.created::timestamptz::date": "date(timestamp with time zone) depends on TimeZone",
    "to_char(p.created::timestamptz, 'YYYY')": "to_char(timestamp with time zone, text) depends on TimeZone",
    "extract(hour FROM p.created::timestamptz)": "depends on TimeZone",
    "age(p.created, p.created)::text": "interval::text depends on TimeZone, DateStyle, IntervalStyle",
    "(p.views / 3.0::float8)::text": "double precision::text depends on",
    "p.created::date::text": "date::text depends on",
    "p.created - p.created": "the interval f depends on",
    """(SELECT json_agg(c.name) AS "{" FROM comments AS c WHERE c.post_id = p.id)""": "json_agg has no ORDER BY",
    "(SELECT array_agg(c.name) FROM comments AS c WHERE c.post_id = p.id)": "array_agg has no ORDER BY",
    "(SELECT string_agg(c.name, ',') FROM comments AS c WHERE c.post_id = p.id)": "string_agg has no ORDER BY",
    "(SELECT n.names FROM named AS n WHERE n.post_id = p.id)": "jsonb_agg in the view public.named has no ORDER BY",
    "(SELECT jsonb_agg(jsonb_build_object('n', c.name)) FROM comments AS c WHERE c.post_id = p.id)": "jsonb_agg has no",
    "(SELECT string_agg(c.name, c.comment) FROM comments AS c WHERE c.post_id = p.id)": "string_agg has no ORDER BY",
    "(CASE WHEN p.views = 1 THEN p.created::date END)::text": "date::text depends on",
    "(SELECT array_agg((SELECT count(*) FROM users AS u WHERE u.id = c.id) ORDER BY c.id) FROM comments AS c)": "",
    "(CASE WHEN age(p.created, p.created) IS NULL THEN 1 ELSE 2 END)::text": "",
    "date_trunc('day', p.created, 'America/New_York') + interval '1 hour'": "",
    "(SELECT jsonb_agg(upper(c.name) ORDER BY c.id) FROM comments AS c WHERE c.post_id = p.id)": "",
    "(SELECT array_agg(DISTINCT c.name) FROM comments AS c WHERE c.post_id = p.id)": "",
    "(SELECT sum(c.stars) FROM comments AS c WHERE c.post_id = p.id)": "",
    "p.views::text || p.title": "",
    "jsonb_build_object('at', p.created)": "",
}


def test_what_depends_on_the_session_or_on_chance_is_noted(blog: World) -> None:
    """Functions, casts and aggregates, also behind a view over a view; nothing is noted of what depends on neither."""
    blog.sql(
        """
        CREATE VIEW named AS SELECT c.post_id, jsonb_agg(c.name) AS names FROM comments AS c GROUP BY c.post_id
        """
    )
    with blog.connect() as connection:
        for expression, expected in REMARKED.items():
            found = remarks.remarks(connection, f"SELECT p.id AS _id, {expression} AS f FROM posts AS p", "select.sql")
            texts = [problems._remarked(one).message for one in found]
            assert any(expected in text for text in texts) if expected else texts == [], (expression, texts)


def test_elements_in_another_order_are_called_so(blog: World) -> None:
    """Verify names the cause, and plan the aggregate."""
    blog.sql("CREATE TABLE parts (id int PRIMARY KEY, post int, name text)")
    add_document(
        blog,
        "unordered",
        "SELECT p.id AS _id, (SELECT string_agg(c.name, ', ') FROM parts AS c WHERE c.post = p.id) AS names "
        "FROM posts AS p",
        {"properties": {"names": {"type": "text"}}},
    )
    blog.migrate()
    blog.apply()
    blog.sql("INSERT INTO parts VALUES (1, 6, 'a'), (2, 6, 'b')")
    blog.backfill("unordered")
    blog.sql("ALTER TABLE parts DISABLE TRIGGER USER; UPDATE parts SET name = translate(name, 'ab', 'ba')")
    done = blog.syncer("verify", "unordered")
    assert "same elements, other order" in done.stdout


CALLERS = {
    "sql": "CREATE FUNCTION slug(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT clean(t)'",
    "plpgsql": "CREATE FUNCTION slug(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN clean(t); END'",
}


@pytest.mark.parametrize("language", CALLERS)
def test_a_function_that_names_another_without_its_schema_is_told_what_to_do(blog: World, language: str) -> None:
    """It works in psql, where public is in the search_path."""
    blog.sql("CREATE FUNCTION clean(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower(t)'")
    blog.sql(CALLERS[language])
    add_document(blog, "slugs", "SELECT p.id AS _id, slug(p.title) AS f FROM posts AS p", {"dynamic": True})
    done = blog.syncer("plan", "slugs")
    assert done.returncode == 1
    said = " ".join((done.stdout + done.stderr).split())
    assert "slug" in said
    assert "names something without its schema" in said
    assert "SET search_path = public" in said
    blog.sql("ALTER FUNCTION slug(text) SET search_path = public")
    assert blog.syncer("plan", "slugs").returncode == 0
