"""Plan against real servers: what it says of indexes, costs, targets and documents is what is there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest

from syncer.apply import activate, plan
from syncer.apply.preview import cost, estimate, forecast
from syncer.apply.preview.estimate import Outcome, TrialResult
from syncer.apply.preview.forecast import DocumentForecast, Forecast
from syncer.apply.preview.problems import ProblemKind
from syncer.base.errors import IndexingError
from syncer.base.model import Target
from syncer.documents import definition
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices
from syncer.lineage.dependencies import Lookup
from tests.harness import BLOG_SCHEMA, DEADLINE_SECONDS, REPOSITORY, World, wait_until

POSTS = """
INSERT INTO users (id, name, email) SELECT i, 'user ' || i, i || '@example.com' FROM generate_series(1, 50) AS i;
INSERT INTO posts (id, user_id, title, body) SELECT i, 1 + i % 50, 'title ' || i, 'body' FROM generate_series(1, 500) i;
INSERT INTO comments (post_id, name, comment, age) SELECT 1 + i % 500, 'bob', 'nice', 7 FROM generate_series(1, 900) i;
ANALYZE users, posts, comments;
"""
_UUID = re.compile(r"(?<=/)[\w-]{22}(?=\])")


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
    (found,) = look(world).documents
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
    assert of_blogpost(blog).outcome is Outcome.NEW
    assert (traces(blog), physical(blog)) == before
    blog.apply()
    before = (traces(blog), physical(blog))
    edit(blog, "index.json", '"title": { "type": "text" }', '"title": { "type": "keyword" }')
    assert of_blogpost(blog).outcome is Outcome.REINDEX
    assert (traces(blog), physical(blog)) == before


def test_before_migrate_it_says_so_and_tells_the_rest(empty_world: World) -> None:
    """A database without the syncer schema gets the same plan, with a word about `syncer migrate`."""
    empty_world.sql(BLOG_SCHEMA.read_text())
    empty_world.sql(POSTS)
    seen = look(empty_world)
    assert not seen.is_migrated
    (document,) = seen.documents
    assert document.outcome is Outcome.NEW
    assert document.documents == 500
    assert empty_world.sql("SELECT to_regnamespace('syncer')") == [(None,)]


@pytest.mark.parametrize(
    ("file", "old", "new", "outcome"),
    [
        (
            "index.json",
            '"body": { "type": "text" }',
            '"body": { "type": "text" }, "views": { "type": "long" }',
            "in_place",
        ),
        ("index.json", '"number_of_replicas": 0', '"number_of_replicas": 0, "refresh_interval": "9s"', "in_place"),
        ("select.sql", "p.body,", "upper(p.body) AS body,", "in_place"),
        ("index.json", '"title": { "type": "text" }', '"title": { "type": "keyword" }', "reindex"),
        ("index.json", '"number_of_shards": 1', '"number_of_shards": 2', "reindex"),
        ("select.sql", "-- A blog post", "-- A post", "nothing"),
    ],
)
def test_plan_and_apply_agree(blog: World, file: str, old: str, new: str, outcome: str) -> None:
    """What plan calls in place is done in place by apply; what it says needs a new index gets one."""
    blog.apply()
    edit(blog, file, old, new)
    found = of_blogpost(blog)
    assert found.outcome == outcome
    assert found.refusals == ()
    before = physical(blog)
    if outcome == "reindex":
        assert found.reason is not None
        assert found.initial_load_seconds is not None
        blog.apply()
        assert physical(blog).keys() == before.keys() | {blog.index_of()}
        assert blog.index_of() not in before
    else:
        assert found.reason is None
        blog.apply()
        assert physical(blog).keys() == before.keys()
    assert of_blogpost(blog).outcome is Outcome.NOTHING


def test_a_new_index_that_is_being_built_is_said_to_be_one(blog: World) -> None:
    """Between an apply that was interrupted and the next one, plan says that a new index takes the old one's place."""
    blog.apply()
    edit(blog, "index.json", '"title": { "type": "text" }', '"title": { "type": "keyword" }')
    before = of_blogpost(blog)
    with servers(blog) as (connection, _, indices):
        activate.carry_out(connection, indices, plan.plan(connection, indices, definition.load_all(blog.config)))
        (step,) = plan.plan(connection, indices, definition.load_all(blog.config)).steps
    assert step.change is plan.PlannedChange.BUILDING
    found = of_blogpost(blog)
    assert (found.outcome, found.reason) == (before.outcome, before.reason) == (Outcome.REINDEX, step.reason)


def test_an_affects_query_changes_triggers_only(blog: World) -> None:
    """Another way from changed rows to documents leaves the index and the documents as they are."""
    blog.apply()
    (blog.document_folder / "affects").mkdir()
    query = "SELECT p.id AS _id FROM posts AS p JOIN %(rows)s AS changed ON p.user_id = changed.id"
    (blog.document_folder / "affects" / "users.sql").write_text(query)
    found = of_blogpost(blog)
    assert found.outcome is Outcome.TRIGGERS
    (users,) = [one for one in found.tables if one.relation == "public.users"]
    assert not users.is_derived


def test_lost_triggers_and_an_incomplete_index_are_seen(blog: World) -> None:
    """What apply would fix is named."""
    blog.apply()
    blog.sql("UPDATE syncer.document SET loaded_at = NULL")
    assert of_blogpost(blog).outcome is Outcome.INITIAL_LOAD
    blog.sql("ALTER TABLE posts DISABLE TRIGGER ALL")
    assert of_blogpost(blog).outcome is Outcome.TRIGGERS


def test_an_index_json_that_elasticsearch_refuses_is_a_refusal(blog: World) -> None:
    """A mapping that is none is said with Elasticsearch's reason, and the rest of the plan stands."""
    edit(blog, "index.json", '"type": "nested"', '"type": "nesting"')
    found = of_blogpost(blog)
    assert found.outcome is None
    assert "nesting" in found.refusals[0].message
    assert len(found.tables) == 3


@pytest.mark.parametrize(
    "mapping",
    [
        {"type": "wrong"},
        {"type": "scaled_float", "scaling_factor": "wrong"},
        {"type": "keyword", "ignore_above": "wrong"},
        {"type": "integer", "coerce": "wrong"},
    ],
)
def test_an_option_that_elasticsearch_refuses_is_a_refusal(blog: World, mapping: dict[str, str]) -> None:
    """A value that an option cannot have is said with Elasticsearch's reason, and the rest of the plan stands."""
    select = "SELECT p.id AS _id, p.title, p.views / 2.0 AS half FROM posts AS p"
    add_document(blog, "halves", select, {"properties": {"half": mapping, "title": mapping}})
    (found,) = look(blog, "halves").documents
    assert found.outcome is None
    (refusal,) = found.refusals
    assert "Elasticsearch refuses the index.json of halves" in refusal.message
    assert len(found.tables) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [('"type": "nested"', '"type": "nesting"'), ('"number_of_replicas": 0', '"number_of_replicas": "many"')],
)
def test_what_no_index_can_be_is_no_reason_for_a_new_one(blog: World, old: str, new: str) -> None:
    """A mistake in index.json is refused as such, by plan and by apply, though the index could not take it either."""
    blog.apply()
    before = physical(blog)
    edit(blog, "index.json", old, new)
    found = of_blogpost(blog)
    assert found.outcome is None
    with pytest.raises(IndexingError) as raised:
        blog.apply()
    assert raised.value.message == found.refusals[0].message
    assert "refuses the index.json of blogpost" in raised.value.message
    assert physical(blog) == before


def test_one_document_gets_a_new_index_beside_another_that_is_changed_in_place(blog: World) -> None:
    """Plan and apply tell them apart; both are equal to their SELECT in the end."""
    add_document(blog, "adored", "SELECT p.id AS _id, p.title FROM posts AS p", {"properties": {}})
    blog.apply()
    before = physical(blog).keys()
    body = {"mappings": {"properties": {"title": {"type": "text"}, "more": {"type": "long"}}}}
    (blog.config / "documents" / "adored" / "index.json").write_text(json.dumps(body))
    edit(blog, "index.json", '"title": { "type": "text" }', '"title": { "type": "keyword" }')
    assert {one.name: one.outcome for one in look(blog).documents} == {
        "adored": Outcome.IN_PLACE,
        "blogpost": Outcome.REINDEX,
    }
    blog.apply()
    assert physical(blog).keys() - before == {blog.index_of()}
    assert blog.differences() == []


def test_an_alias_of_somebody_else_is_a_refusal(blog: World) -> None:
    """That the alias is an index already is said before apply is."""
    with blog.elasticsearch() as client:
        client.indices.create(index=blog.alias)
    assert "needs the name for an alias" in of_blogpost(blog).refusals[0].message


# Scratch indices


def test_a_scratch_index_is_gone_after_an_interrupt(blog: World) -> None:
    """Ctrl-C in the middle of a trial leaves nothing."""

    class Interrupting(Index):
        def write(self, target: Target, compositions: Any) -> Any:
            assert compositions
            assert target.index_name in physical(blog)
            raise KeyboardInterrupt

    with servers(blog) as (connection, _, indices), blog.elasticsearch() as client:
        step = plan.plan(connection, indices, definition.load_all(blog.config)).steps[0]
        with pytest.raises(KeyboardInterrupt):
            estimate.attempt(connection, Interrupting(client, bulk_bytes_max=8_000_000), indices, step)
    assert physical(blog) == {}
    assert not [one for one in traces(blog) if one[0] == "lock"]


def test_what_a_killed_plan_left_is_removed_by_the_next(blog: World) -> None:
    """A scratch index that nobody could remove goes away with the next one; an index of another alias stays."""
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


def test_no_search_sees_a_scratch_index(blog: World) -> None:
    """A search of everything, and of the alias with a star, finds no document of a trial."""
    found: list[int] = []

    class Looking(Index):
        def write(self, target: Target, compositions: Any) -> Any:
            outcome = super().write(target, compositions)
            with blog.elasticsearch() as client:
                client.indices.refresh(index=target.index_name)
                assert client.count(index=target.index_name).body["count"] == estimate.SAMPLE_DOCUMENTS
                found.append(client.count(index=f"{blog.alias}*").body["count"])
            return outcome

    with servers(blog) as (connection, _, indices), blog.elasticsearch() as client:
        step = plan.plan(connection, indices, definition.load_all(blog.config)).steps[0]
        estimate.attempt(connection, Looking(client, bulk_bytes_max=8_000_000), indices, step)
    assert found == [0, 0]


# The sample


def test_documents_that_are_rejected_are_an_error(blog: World) -> None:
    """A value inside a jsonb that its mapping rejects is found by trying, with the field, a share and a document."""
    blog.sql("ALTER TABLE comments ALTER age TYPE bigint; UPDATE comments SET age = 123456789 WHERE post_id = 7")
    blog.sql("DELETE FROM posts WHERE id NOT BETWEEN 1 AND 100")
    seen = look(blog)
    (problem,) = seen.documents[0].problems
    assert (problem.kind, problem.field, problem.example) == (ProblemKind.REJECTED, "comments.age", "7")
    assert (problem.documents, problem.looked_at) == (1, 100)
    assert seen.has_errors
    assert not seen.has_warnings


def test_what_is_inside_a_jsonb_is_looked_at(blog: World) -> None:
    """A fraction, a text too long and a name without a mapping inside an object are warned of; what fits is not."""
    blog.sql("UPDATE posts SET views = 3 WHERE id = 5; UPDATE posts SET title = repeat('x', 300) WHERE id = 6")
    blog.sql("DELETE FROM posts WHERE id > 100")
    select = """SELECT p.id AS _id, jsonb_build_object('half', p.views / 2.0, 'views', p.views, 'title', p.title,
        'other', 1, 'tags', jsonb_build_array(jsonb_build_object('share', 0.5))) AS inside FROM posts AS p"""
    properties = {
        "half": {"type": "long"},
        "views": {"type": "long"},
        "title": {"type": "keyword", "ignore_above": 256},
        "tags": {"type": "nested", "properties": {"share": {"type": "byte"}}},
    }
    inside = {"dynamic": False, "properties": properties}
    add_document(blog, "inner", select, {"properties": {"inside": inside}})
    found = {one.field: (one.kind, one.documents) for one in look(blog, "inner").documents[0].problems}
    assert found == {
        "inside.half": (ProblemKind.CHANGED, 1),
        "inside.title": (ProblemKind.UNSEARCHABLE, 1),
        "inside.tags.share": (ProblemKind.CHANGED, 100),
        "inside.other": (ProblemKind.UNSEARCHABLE, 100),
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
    assert (found.refusals, found.outcome) == ((), Outcome.NEW)
    assert ("more.half", ProblemKind.CHANGED, "6") in [(one.field, one.kind, one.example) for one in found.problems]


def test_a_dot_in_a_name_is_a_step_into_an_object(blog: World) -> None:
    """What is at the end of it is held against the mapping there, be it inside a jsonb."""
    blog.sql("DELETE FROM posts WHERE id > 100")
    select = """SELECT p.id AS _id, jsonb_build_object('a.b', 1.5, 'a', jsonb_build_object('c.d', 2.5)) AS inside,
        jsonb_build_object('e.f', 3.5) AS more FROM posts AS p"""
    deep = {"properties": {"b": {"type": "double"}, "c": {"dynamic": False, "properties": {}}}}
    inside = {"dynamic": "strict", "properties": {"a": deep}}
    add_document(
        blog, "dotted", select, {"properties": {"inside": inside, "more": {"properties": {"e.f": {"type": "long"}}}}}
    )
    found = {one.field: one.kind for one in look(blog, "dotted").documents[0].problems}
    assert found == {"inside.a.c.d": ProblemKind.UNSEARCHABLE, "more.e.f": ProblemKind.CHANGED}


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
    add_document(blog, "dated", "SELECT p.id AS _id, p.created::date AS day FROM posts AS p", mappings)
    assert look(blog, "dated").documents[0].problems == ()
    blog.sql("ALTER TABLE posts ADD COLUMN due text")
    add_document(blog, "due", "SELECT p.id AS _id, p.due::date AS day FROM posts AS p", mappings)
    (noted,) = look(blog, "due").documents[0].problems
    assert (noted.kind, noted.is_note) == (ProblemKind.STALE, True)
    assert "to_date" in noted.action


def test_an_id_that_elasticsearch_does_not_take_is_an_error(blog: World) -> None:
    """An id of more than 512 bytes is rejected wherever it is; plan finds the document."""
    add_document(blog, "titled", "SELECT p.title AS _id, p.body FROM posts AS p")
    blog.sql("CREATE UNIQUE INDEX ON posts (title)")
    assert look(blog, "titled").documents[0].problems == ()
    blog.sql("UPDATE posts SET title = repeat('x', 513) WHERE id = 9")
    found = [one for one in look(blog, "titled").documents[0].problems if one.field == "_id"]
    assert [(one.kind, one.documents, one.example) for one in found] == [(ProblemKind.REJECTED, 1, "x" * 513)]


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
    assert documents["blogpost"].outcome is Outcome.NEW
    assert not any(table.is_owned for table in documents["blogpost"].tables)


def test_a_select_that_fails_on_the_data_is_an_error(blog: World) -> None:
    """A division by zero in some document is said, and hides nothing else."""
    add_document(blog, "broken", "SELECT p.id AS _id, 1 / p.views AS share FROM posts AS p")
    (found,) = look(blog, "broken").documents
    assert [one.kind for one in found.problems] == [ProblemKind.FAILS]
    assert "division by zero" in found.problems[0].message
    assert found.has_errors
    assert found.outcome is Outcome.NEW
    assert found.tables


@pytest.mark.parametrize(
    ("select", "says"),
    [
        (
            "SELECT p.id AS _id, (SELECT c.name FROM comments AS c WHERE c.post_id = p.id) AS name FROM posts AS p",
            "more than one row",
        ),
        ("SELECT p.id AS _id, named(p.title) AS name FROM posts AS p", "no name for title 7"),
    ],
)
def test_one_document_at_fault_hides_nothing(blog: World, select: str, says: str) -> None:
    """A subquery that returns two rows for one post, or a function that raises, is said; the others are planned."""
    blog.sql("DELETE FROM comments; DELETE FROM posts WHERE id > 100")
    blog.sql("INSERT INTO comments (post_id, name, comment) VALUES (7, 'bob', 'nice'), (7, 'eve', 'good')")
    blog.sql(
        "CREATE FUNCTION named(said text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN IF said = 'title 7' THEN RAISE 'no name for %', said; END IF; RETURN said; END $$"
    )
    add_document(blog, "named", select, {"properties": {"name": {"type": "keyword"}}})
    documents = {one.name: one for one in look(blog).documents}
    (problem,) = documents["named"].problems
    assert problem.kind is ProblemKind.FAILS
    assert says in problem.message
    assert documents["named"].refusals == ()
    assert documents["named"].outcome is documents["blogpost"].outcome is Outcome.NEW


def test_an_affects_query_that_fails_on_a_row_is_said(blog: World) -> None:
    """Its cost is the planner's, with what Postgres says; the plan of the document stands."""
    affects = blog.document_folder / "affects"
    affects.mkdir()
    query = "SELECT p.id / (c.id - 3) AS _id FROM posts AS p JOIN %(rows)s AS c ON p.user_id = c.id"
    (affects / "users.sql").write_text(query)
    found = of_blogpost(blog)
    (users,) = [one for one in found.tables if one.relation == "public.users"]
    assert users.ways[0].cost is not None
    assert (users.ways[0].cost.failure, users.ways[0].cost.seconds) == ("division by zero", None)
    assert found.refusals == ()
    assert found.outcome is Outcome.NEW


def test_a_count_that_fails_is_no_count_that_takes_too_long(blog: World) -> None:
    """What Postgres says of the row is what a trial says; the documents before it are tried all the same."""
    add_document(blog, "viewed", "SELECT p.id AS _id, p.title FROM posts AS p WHERE 1 / (p.views - 9) < 1")
    with servers(blog) as (connection, index, indices):
        *_, step = plan.plan(connection, indices, definition.load_all(blog.config)).steps
        blog.sql("UPDATE posts SET views = 9 WHERE id = 500")
        trial = estimate.attempt(connection, index, indices, step)
    assert (trial.documents, trial.failure, len(trial.sample)) == (None, "division by zero", estimate.SAMPLE_DOCUMENTS)


@pytest.mark.thorough
def test_an_initial_load_takes_about_as_long_as_estimated(blog: World) -> None:
    """The estimate is measured: ten times the documents take about ten times as long.

    Of several measurements the least counts: a machine that has other things to do makes them greater only.
    """

    def trial() -> TrialResult:
        with servers(blog) as (connection, index, indices):
            step = plan.plan(connection, indices, definition.load_all(blog.config)).steps[0]
            seen = [estimate.attempt(connection, index, indices, step) for _ in range(4)]
            return min(seen, key=lambda one: one.initial_load_seconds or inf)

    few = trial()
    blog.sql("INSERT INTO posts (id, user_id, title, body) SELECT i, 1, 't', 'b' FROM generate_series(501, 5000) AS i")
    many = trial()
    assert (few.documents, many.documents) == (500, 5000)
    assert few.initial_load_seconds is not None
    assert many.initial_load_seconds is not None
    assert 2 < many.initial_load_seconds / few.initial_load_seconds < 50
    assert len(many.sample) == estimate.SAMPLE_DOCUMENTS


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


def test_a_query_that_takes_too_long_is_left_to_the_planner(blog: World) -> None:
    """A query that does not finish in time has a cost and no seconds, and the session goes on as before."""
    with blog.connect() as connection:
        found = cost.explain(connection, psycopg.sql.SQL("SELECT pg_sleep(30)"), (), seconds_max=0.2)
        assert found.seconds is None
        assert found.total > 0
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)


def test_a_table_read_from_end_to_end_is_named(blog: World) -> None:
    """A sequential scan counts from some size on, and the table's name is quoted as SQL needs it."""
    blog.sql('CREATE TABLE "Large" (id int); ANALYZE "Large"; CREATE TABLE small (id int)')
    blog.sql(f'INSERT INTO "Large" SELECT generate_series(1, {cost.LARGE_ROWS}); ANALYZE "Large"')
    with blog.connect() as connection:
        query = psycopg.sql.SQL('SELECT FROM public."Large", public.small')
        assert cost.explain(connection, query, (), seconds_max=5).scans == ('public."Large"',)
        assert json.loads(cost.sample(connection, 'public."Large"', {"id"}))


def lookups(*columns: str) -> list[Lookup]:
    """One lookup."""
    return [Lookup(relation="public.t", columns=columns)]


@pytest.mark.parametrize(
    ("index", "columns", "is_missing"),
    [
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
    ],
)  # fmt: skip
def test_an_index_is_missing_unless_one_leads_with_the_columns(
    empty_world: World, index: str, columns: tuple[str, ...], is_missing: bool
) -> None:
    """Only a whole, valid b-tree or hash index that begins with what is compared, in any order, serves a lookup."""
    empty_world.sql('CREATE TABLE t (a int, b int, "C d" int, s text)')
    empty_world.sql(index)
    with empty_world.connect() as connection:
        missing = cost.missing_indexes(connection, lookups(*columns))
        assert bool(missing) == is_missing
        for one in missing:
            connection.execute(one.statement.encode())
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


def test_the_blog_misses_no_index_until_one_is_dropped(blog: World) -> None:
    """The statement that plan prints makes the index that the lookup needs."""
    assert look(blog).missing_indexes == ()
    blog.sql("DROP INDEX posts_user_id")
    (missing,) = look(blog).missing_indexes
    assert missing.statement == "CREATE INDEX CONCURRENTLY ON public.posts (user_id);"
    with blog.connect() as connection:
        connection.execute(missing.statement.encode())
    assert look(blog).missing_indexes == ()


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
    """Composing by a made-up id reads the whole table until the printed index is there."""
    add_document(blog, "named", "SELECT 'entry-' || p.id AS _id, p.title FROM posts AS p")
    blog.sql("INSERT INTO posts (id, user_id, title, body) SELECT i, 1, 't', 'b' FROM generate_series(501, 20000) AS i")
    seen = look(blog, "named")
    (missing,) = seen.missing_indexes
    before = seen.documents[0].compose
    with blog.connect() as connection:
        connection.execute(missing.statement.encode())
        connection.execute("ANALYZE public.posts")
    seen = look(blog, "named")
    assert seen.missing_indexes == ()
    after = seen.documents[0].compose
    assert before is not None
    assert after is not None
    assert after.total < before.total


# Refusals


def test_every_refusal_of_every_document_is_listed(blog: World) -> None:
    """What is wrong with one document, or one table of it, hides nothing that is wrong with another."""
    blog.sql("CREATE TABLE log (line text)")
    add_document(
        blog,
        "adrift",
        "SELECT p.id AS _id, (SELECT count(*) FROM users) AS u, (SELECT max(name) FROM comments) AS c FROM posts AS p",
    )
    add_document(blog, "keyless", "SELECT p.id AS _id, l.line FROM posts AS p LEFT JOIN log AS l ON l.line = p.title")
    add_document(blog, "misspelt", "SELECT p.id AS _id, p.tilte FROM posts AS p")
    (add_document(blog, "torn", "SELECT p.id AS _id FROM posts AS p") / "index.json").write_text("{")
    seen = look(blog)
    refusals = {one.name: [refusal.message for refusal in one.refusals] for one in seen.documents}
    assert [name for name, said in refusals.items() if not said] == ["blogpost"]
    assert "public.users" in refusals["adrift"][0]
    assert "public.comments" in refusals["adrift"][0]
    assert "no primary key" in refusals["keyless"][0]
    assert "tilte" in refusals["misspelt"][0]
    assert "not valid JSON" in refusals["torn"][0]
    assert seen.has_errors
    assert seen.forgotten == ()


def test_a_table_that_is_gone_hides_no_other_document(blog: World) -> None:
    """A document active whose table was dropped is refused with that, and the others are planned as ever."""
    add_document(blog, "named", "SELECT u.id AS _id, u.name FROM users AS u")
    blog.apply()
    blog.sql("DROP TABLE comments")
    documents = {one.name: one for one in look(blog).documents}
    assert "comments" in documents["blogpost"].refusals[0].message
    assert documents["blogpost"].index == blog.alias
    assert documents["named"].outcome is Outcome.NOTHING


def test_a_suspended_document_says_why(blog: World) -> None:
    """What has suspended a document stands in its plan, with what apply would do."""
    blog.apply()
    blog.sql("UPDATE syncer.document SET suspended = 'column title was renamed'")
    (document,) = look(blog).documents
    assert document.suspended == "column title was renamed"
    assert document.outcome is Outcome.IN_PLACE


def test_a_document_that_is_refused_is_not_forgotten(blog: World) -> None:
    """A folder that is broken today does not make its tables look released."""
    blog.apply()
    edit(blog, "select.sql", "p.title", "p.tilte")
    seen = look(blog)
    assert seen.documents[0].refusals
    assert seen.forgotten == ()
    assert seen.released == ()


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


@pytest.mark.parametrize(
    ("index", "select", "says"),
    [
        (None, FILM.replace("f.title,", "f.title, f.title AS _source,"), "_source cannot be a field"),
        (None, FILM.replace("f.title,", "f.title, f.length,"), "length: 200 of 200 sampled documents are rejected"),
        ({"settings": {"number_of_shards": 2}, "mappings": REJECTED}, FILM, "rating: 200 of 200 sampled documents are"),
        ({"mappings": {"properties": FILM_FIELDS | {"rating": {"type": "keywrd"}}}}, FILM, "keywrd"),
        (None, FILM.replace("f.rental_rate", "1 / (f.film_id % 2)"), "division by zero"),
    ],
    ids=["definition", "in place", "new index", "mapping", "data"],
)
def test_apply_changes_nothing_if_one_of_many_is_wrong(store: World, index: Any, select: str, says: str) -> None:
    """One bad definition leaves every alias, index, trigger and revision as it was, though others have changed."""
    store.apply()
    before = state(store)
    add_document(store, "artist", "SELECT a.artist_id AS _id, a.name FROM music.artist AS a")
    write(store, "track", select=TRACK.replace("t.name,", "upper(t.name) AS name,"))
    write(store, "film", select=select, **({} if index is None else {"index": index}))
    planned = store.syncer("plan")
    assert planned.returncode == 1
    assert planned.stdout.startswith("Error in film: ")
    assert says in planned.stdout.splitlines()[0]
    applied = store.syncer("apply", "--yes")
    assert applied.returncode == 1
    assert says in applied.stderr
    assert state(store) == before


def test_an_alias_of_somebody_else_leaves_the_others_untouched(store: World) -> None:
    """That an alias is an index already is found before the first index is created."""
    with store.elasticsearch() as client:
        client.indices.create(index=f"{store.alias}-track")
    before = state(store)
    applied = store.syncer("apply", "--yes")
    assert applied.returncode == 1
    assert "needs the name for an alias" in applied.stderr
    assert state(store) == before


def test_a_table_that_stays_locked_leaves_every_index_untouched(store: World) -> None:
    """Triggers come before indices: if they cannot be created in time, no alias leads to an empty index."""
    with store.connect() as connection, connection.transaction():
        connection.execute("LOCK TABLE rental.film IN ROW EXCLUSIVE MODE")
        applied = store.syncer("apply", "--yes", "--lock-timeout", "1")
    assert applied.returncode == 1
    assert "film" in applied.stderr
    assert physical(store) == {}
    assert store.syncer("apply", "--yes").returncode == 0
    store.documents = ("film", "review", "track")
    assert store.differences() == []


def test_findings_have_a_share_and_a_count(store: World) -> None:
    """All documents, some of all, and some of a sample are told apart."""
    write(store, "film", index={"mappings": {"properties": FILM_FIELDS | {"rating": {"type": "text"}}}})
    store.sql("UPDATE rental.film SET rental_rate = 1.5; UPDATE rental.film SET rental_rate = 1 WHERE film_id <= 59")
    write(store, "track", select="SELECT t.isrc AS _id, 1 / (t.milliseconds % 7000) AS share FROM music.track AS t")
    write(store, "track", index={"mappings": _texts("share")})
    body = {"mappings": {"properties": FILM_FIELDS | {"rating": {"type": "text"}, "price": {"type": "long"}}}}
    write(store, "film", index=body)
    documents = {one.name: one for one in look(store).documents}
    findings = {one.field: one.finding for one in documents["film"].problems}
    assert findings["rating"].endswith("; all 300 documents")
    assert re.search(r"; 241 of 300 documents, for example \d+$", findings["price"])
    (problem,) = documents["track"].problems
    assert re.fullmatch(
        r"\d+ of 200 sampled documents cannot be built, for example \S+: the SELECT fails on the data: division by .*",
        problem.finding,
    )


@pytest.mark.parametrize(
    ("kind", "says", "does"),
    [
        ("keywrd", "keywrd, which rating has, is no field type", "Did you mean keyword?"),
        ("search_as_you_type", "this server lacks the field type search_as_you_type, which rating has", "module"),
        ("zzz", "zzz, which rating has, is no field type", "index.json"),
    ],
)
def test_a_field_type_that_the_server_lacks_is_no_typo(store: World, kind: str, says: str, does: str) -> None:
    """The sandbox's Elasticsearch has no optional modules; a misspelt type is told apart, with the likely one."""
    write(store, "film", index={"mappings": {"properties": FILM_FIELDS | {"rating": {"type": kind}}}})
    (refusal,) = look(store, "film").documents[0].refusals
    assert says in refusal.message
    assert does in refusal.hint


def test_a_type_that_the_server_lacks_is_not_recommended(store: World) -> None:
    """Prices as whole numbers: the advice names double, and scaled_float only where there is one."""
    write(store, "film", index={"mappings": {"properties": FILM_FIELDS | {"price": {"type": "long"}}}})
    (problem,) = look(store, "film").documents[0].problems
    assert problem.action == "Map it as double; or round it in the SELECT."


def test_a_point_becomes_a_geo_point(store: World) -> None:
    """A point is rejected as it is; what plan advises is accepted, searched by distance, and NULL stays NULL."""
    mappings = {"properties": {"location": {"type": "geo_point"}}}
    folder = add_document(store, "shop", "SELECT s.store_id AS _id, s.location FROM rental.store AS s", mappings)
    (problem,) = look(store, "shop").documents[0].problems
    assert problem.finding.startswith("2 of 3 sampled documents are rejected, for example ")
    assert "column[1] || ',' || column[0]" in problem.action
    (folder / "select.sql").write_text(
        "SELECT s.store_id AS _id, s.location[1] || ',' || s.location[0] AS location FROM rental.store AS s"
    )
    assert look(store, "shop").documents[0].problems == ()
    store.apply()
    with store.elasticsearch() as client:
        near = {"distance": "10km", "location": {"lat": 49.7, "lon": -112.8}}
        client.indices.refresh(index=f"{store.alias}-shop")
        found = client.search(index=f"{store.alias}-shop", query={"geo_distance": near}).body["hits"]["hits"]
        assert [one["_id"] for one in found] == ["1"]
        assert client.get(index=f"{store.alias}-shop", id="3").body["_source"] == {"location": None}


# Keys, joins and indexes of that schema


@pytest.mark.parametrize(
    ("select", "says", "not_"),
    [
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
    ],
)
def test_a_refusal_names_what_is_at_fault(store: World, select: str, says: str, not_: str) -> None:
    """The join, the condition or the query that leads nowhere, and no cause that does not apply."""
    add_document(store, "adrift", select)
    (refusal,) = look(store, "adrift").documents[0].refusals
    first = refusal.message.splitlines()[0]
    assert says in first
    assert not_ not in first


def test_a_cast_that_an_index_does_not_mind_is_served_by_it(store: World) -> None:
    """Keys of varchar and of a domain over it: the planner uses the indexes that are there, and none is advised."""
    playlist = """SELECT p.playlist_id AS _id, (SELECT jsonb_agg(t.name) FROM music.playlist_track AS l
        JOIN music.track AS t ON t.isrc = l.isrc WHERE l.playlist_id = p.playlist_id) AS tracks FROM music.playlist p"""
    add_document(store, "playlist", playlist)
    assert look(store, "playlist").missing_indexes == ()
    assert look(store, "review").missing_indexes == ()
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
