"""An index that another program fills is compared with a SELECT: by meaning, read only, and without false alarms."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.verify import audit
from syncer.verify.audit import AuditReport
from tests.support.world import VERSIONS, World

DAYS = {"type": "date", "format": "yyyy/MM/dd"}
AT = "'2026-03-01 10:20:30.123456+02'::timestamptz"
FIELDS: dict[str, tuple[dict[str, Any], str, object, bool]] = {
    "epoch": ({"type": "date"}, AT, 1772353230123, True),
    "epoch_one_later": ({"type": "date"}, AT, 1772353230124, False),
    "epoch_of_seconds": ({"type": "date", "format": "epoch_second"}, "'2026-03-01'::date", 1772323200, True),
    "other_zone": ({"type": "date"}, AT, "2026-03-01T04:20:30.123-04:00", True),
    "day_of_a_format": (DAYS, "'2026-03-01'::date", "2026/03/01", True),
    "other_day_of_a_format": (DAYS, "'2026-03-01'::date", "2026/03/02", False),
    "day_before_month": ({"type": "date", "format": "yyyy-dd-MM"}, "'2026-03-01'::date", "2026-01-03", True),
    "days_in_objects": (
        {"properties": {"at": DAYS}},
        """'[{"at": "2026-03-01"}, {"at": null}, {"at": "2026-03-02"}]'::jsonb""",
        [{"at": "2026/03/01"}, {}, {"at": ["2026/03/02"]}], True,
    ),
    "days_in_nested_objects_swapped": (
        {"type": "nested", "properties": {"at": DAYS}}, """'[{"at": "2026-03-01"}, {"at": "2026-03-02"}]'::jsonb""",
        [{"at": "2026/03/02"}, {"at": "2026/03/01"}], False,
    ),
    "year_and_month": ({"type": "date"}, "'2026-03-01'::date", "2026-03", True),
    "other_month": ({"type": "date"}, "'2026-03-01'::date", "2026-02", False),
    "microseconds": ({"type": "date_nanos"}, AT, "2026-03-01T08:20:30.123456Z", True),
    "nanoseconds": ({"type": "date_nanos"}, AT, "2026-03-01T08:20:30.123456001Z", False),
    "text_of_a_number": ({"type": "long"}, "7", "7", True),
    "single_precision": ({"type": "float"}, "0.1::numeric", 0.10000000149011612, True),
    "double_precision": ({"type": "double"}, "0.1::numeric", 0.10000000149011612, False),
    "half_precision": ({"type": "half_float"}, "0.1::numeric", "0.0999755859375", True),
    "vector": ({"type": "dense_vector", "dims": 2}, "ARRAY[0.1, 2]", [0.10000000149011612, 2.0], True),
    "dotted_names": (
        {"properties": {"a": {"type": "long"}, "b": {"properties": {"c": {"type": "keyword"}}}}},
        """'{"a": 1, "b": {"c": "x"}}'::jsonb""", {"b.c": "x", "a": "1"}, True,
    ),
    "dotted_name_of_another": ({"properties": {}}, """'{"a": {"b": "x"}}'::jsonb""", {"a": {}, "a.b": "y"}, False),
    "number_as_keyword": ({"type": "keyword"}, "1.50::numeric", "1.50", True),
    "other_text_of_a_number": ({"type": "keyword"}, "1.50::numeric", "1.5", False),
    "truth": ({"type": "boolean"}, "true", "true", True),
    "truth_and_one": ({"type": "object", "enabled": False}, """'{"a": true}'::jsonb""", {"a": 1}, False),
    "absent": ({"type": "keyword"}, "ARRAY[]::text[]", None, True),
    "one_in_an_array": ({"type": "keyword"}, "'a'", ["a", None], True),
    "other_order": ({"type": "keyword"}, "ARRAY['a', 'b']", ["b", "a"], False),
    "range": ({"type": "integer_range"}, "jsonb_build_object('gte', 1, 'lt', 5)", {"gt": 0, "lte": "4"}, True),
    "other_range": ({"type": "integer_range"}, "jsonb_build_object('gte', 1, 'lt', 5)", {"gte": 1, "lte": 5}, False),
    "range_of_dates": (
        {"type": "date_range", "format": "yyyy/MM/dd"}, "jsonb_build_object('gte', '2026-03-01'::date, 'lt', NULL)",
        {"gte": "2026/03/01"}, True,
    ),
}  # fmt: skip
"""By name: the mapping of a field, what the SELECT returns, what the index holds, and whether they are alike."""
if VERSIONS.opensearch:
    del FIELDS["vector"]


def audited(world: World, select: str, *, settle_seconds: float = 0) -> AuditReport:
    """What an audit finds; by default, it waits for nothing but the refresh of the index."""
    with world.index() as index:
        return audit.audit(
            world.connect, select, file="x.sql", index=index, name=world.alias, settle_seconds=settle_seconds
        )


def fill(client: Elasticsearch, index: str, documents: dict[str, dict[str, Any]]) -> None:
    """What a script does."""
    for id_, source in documents.items():
        client.index(index=index, id=id_, document=source, refresh=True)


def test_values_are_compared_by_what_the_mapping_makes_of_them(empty_world: World) -> None:
    """Dates in any format, numbers, ranges, null, arrays of one; each difference is named, and nothing else."""
    world = empty_world
    fields = ", ".join(f"{sql} AS {name}" for name, (_, sql, _, _) in FIELDS.items())
    with world.elasticsearch() as client:
        body = {"properties": {name: mapping for name, (mapping, *_) in FIELDS.items()}}
        client.indices.create(index=world.alias, mappings=body, settings={"refresh_interval": "10ms"})
        fill(client, world.alias, {"1": {name: held for name, (_, _, held, _) in FIELDS.items()} | {"other": 1}})
    report = audited(world, f"SELECT 1 AS _id, {fields} -- all")
    (drift,) = report.drifts
    differing = {difference.path.partition("[")[0].partition(".")[0] for difference in drift.differences}
    assert differing == {name for name, (*_, is_alike) in FIELDS.items() if not is_alike}
    assert report.not_compared == {"other"}


POSTS = """
CREATE TABLE posts (id int PRIMARY KEY, title text, at timestamptz DEFAULT now());
INSERT INTO posts SELECT g, 'secret ' || g FROM generate_series(1, 9) AS g
"""
SELECT = "SELECT p.id AS _id, p.title FROM posts AS p"


@pytest.fixture
def filled(empty_world: World) -> World:
    """Nine posts, in two indices of one alias, by a script."""
    world = empty_world
    world.sql(POSTS)
    with world.elasticsearch() as client:
        for number in range(2):
            name = f"{world.alias}-{number}"
            client.indices.create(index=name, aliases={world.alias: {}}, settings={"refresh_interval": "10ms"})
            fill(client, name, {str(id_): {"title": f"secret {id_}"} for id_ in range(1, 10) if id_ % 2 == number})
    (world.folder / "posts.sql").write_text(SELECT)
    return world


def command(world: World) -> tuple[str, ...]:
    """The command that audits the index of a world."""
    return "verify", "--select", str(world.folder / "posts.sql"), "--index", world.alias, "--settle", "0"


def test_an_audit_finds_and_only_reads(filled: World) -> None:
    """What is missing, extra, twice or stale, without a schema of syncer's; it shows a row's values only if asked."""
    world = filled
    assert "9 documents equal their SELECT" in world.prints(*command(world))
    with world.elasticsearch() as client:
        fill(client, f"{world.alias}-0", {"10": {"title": "secret"}, "1": {"title": "secret 1"}})
        client.delete(index=f"{world.alias}-0", id="2", refresh=True)
    world.sql("UPDATE posts SET title = 'secret new' WHERE id = 3")
    as_json = json.loads(world.prints(*command(world), "--json", code=1))[0]
    kinds = {drift["id"]: drift["kind"] for drift in as_json["drifts"]}
    assert kinds == {"1": "duplicate", "2": "missing", "3": "different", "10": "extra"}
    printed = world.prints(*command(world), code=1)
    assert ("secret" in printed, "unknown to syncer" in printed) == (False, True)
    assert "secret new" in world.prints(*command(world), "--values", code=1)
    assert "different" not in world.prints(*command(world), "--ignore", "title", "--json", code=1)
    assert world.sql("SELECT to_regnamespace('syncer')") == [(None,)]


@pytest.mark.parametrize(
    ("select", "advice", "is_of_time"),
    [
        (SELECT.replace("p.id", "'post-' || p.id"), "No id of the SELECT is in the index", True),
        ("SELECT p.id AS _id, p.id / (p.id % 1) AS n FROM posts AS p", "Run the SELECT in psql", False),
    ],
    ids=["no id in common", "an error on a row"],
)
def test_advice_is_about_the_documents_that_differ(
    filled: World, select: str, advice: str, *, is_of_time: bool
) -> None:
    """That everything is missing and extra says little, and an error of the SELECT on a row is no matter of time."""
    (filled.folder / "posts.sql").write_text(select)
    printed = filled.prints(*command(filled), code=1)
    assert (advice in printed, "longer --settle" in printed) == (True, is_of_time)


PLACED: tuple[tuple[str, dict[str, Any], set[str]], ...] = (
    ("author.name", {"author": {"name": "a", "age": 3}}, set()),
    ("author.name", {"author.name": "a", "author": [{"age": 3}]}, set()),
    ("author.name", {"author": {"name": "b", "age": 3}}, {"author.name"}),
    ("author.home.city", {"author": {"home.city": "b", "home": {"zip": 1}}}, {"author.home.city"}),
)
"""A column whose value is ``a``, what the index holds, and the paths that differ."""


def test_a_column_may_name_a_field_of_an_object(empty_world: World) -> None:
    """As searches name it; the other fields of the object are not compared."""
    for column, held, differing in PLACED:
        with empty_world.elasticsearch() as client:
            fill(client, empty_world.alias, {"1": held})
        report = audited(empty_world, f"SELECT 1 AS _id, 'a' AS \"{column}\"")
        assert {difference.path for drift in report.drifts for difference in drift.differences} == differing, held


RANGES = (
    "SELECT p.code AS _id, p.n FROM parts AS p",
    "SELECT p.mark AS _id, p.n FROM parts AS p",
    "WITH s AS MATERIALIZED (SELECT * FROM parts) SELECT s.code AS _id, s.n FROM s",
    "SELECT p.code AS _id, max(p.n) OVER (PARTITION BY p.mark, p.code IS NULL) AS n FROM parts AS p",
)


def test_ids_may_be_read_in_ranges_or_at_once(empty_world: World) -> None:
    """Each row of the SELECT is compared once, and those without an id are counted; also where no range is cheaper."""
    world, numbers = empty_world, range(1, 2500)
    world.sql("CREATE TABLE parts (code text UNIQUE, mark character(5) UNIQUE, n int)")
    world.sql("INSERT INTO parts SELECT 'p' || g, 'p' || g, g FROM generate_series(1, 2499) AS g")
    world.sql("INSERT INTO parts SELECT NULL, NULL, 1 FROM generate_series(1, 3); ANALYZE parts")
    with world.elasticsearch() as client:
        operations = [line for n in numbers if n != 7 for line in ({"index": {"_id": f"p{n}"}}, {"n": n})]
        client.bulk(index=world.alias, operations=operations, refresh=True)
    for select in RANGES:
        report = audited(world, select)
        assert [(drift.id, drift.kind) for drift in report.drifts] == [("p7", "missing")], select
        assert (report.documents, report.without_id) == (2499, 3), select


def test_rows_without_an_id_are_named(filled: World) -> None:
    """How many, and the query that shows them; they are no documents, so the index is right."""
    filled.sql("CREATE TABLE drafts (post int); INSERT INTO drafts VALUES (1), (NULL), (NULL)")
    (filled.folder / "posts.sql").write_text(f"{SELECT} UNION ALL SELECT post, 'x' FROM drafts WHERE post IS NULL")
    printed = filled.prints(*command(filled), environment={"COLUMNS": "200"})
    assert "2 rows of the SELECT have no _id, and so no document" in printed
    query = printed.partition("To see them: ")[2].partition("\n")[0]
    assert len(filled.sql(query.replace("…", (filled.folder / "posts.sql").read_text()))) == 2


Between = Callable[[World, Elasticsearch, int], object]
FLIGHTS: dict[str, tuple[Between, int, int]] = {
    "written late": (lambda w, c, n: fill(c, f"{w.alias}-1", {"3": {"title": "old" if n == 1 else "new"}}), 0, 0),
    "written all the while": (lambda w, c, n: fill(c, f"{w.alias}-1", {"3": {"title": f"old {n}"}}), 0, 1),
    "never written": (lambda w, c, _: fill(c, f"{w.alias}-1", {"1": {"title": "secret 1"}}), 1, 0),
}


@pytest.mark.parametrize("name", FLIGHTS)
def test_what_is_in_flight_is_read_again(name: str, filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times, after the time to settle: what is written meanwhile is level, or busy; what is kept has drifted."""
    write, drifted, busy = FLIGHTS[name]
    pauses: list[float] = []
    filled.sql("UPDATE posts SET title = 'new' WHERE id = 3")
    with filled.elasticsearch() as client:

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            write(filled, client, len(pauses))

        monkeypatch.setattr(audit, "time", SimpleNamespace(sleep=sleep))
        report = audited(filled, SELECT, settle_seconds=7)
    assert (len(report.drifts), len(report.busy)) == (drifted, busy)
    assert pauses == [7.0] * (2 if name == "written late" else 3)


REFUSED = (
    ("SELECT id FROM posts", "", "has no column _id"),
    ("SELECT id AS _id, nope FROM posts", "", 'column "nope" does not exist'),
    ("SELECT 1 AS _id FROM posts", "", "more than once"),
    ("SELECT id AS _id, title, at AS title FROM posts", "", "two columns of one name"),
    ("SELECT id AS _id FROM posts; SELECT 1", "", "refused by Postgres"),
    ("SELECT id AS _id, nextval('posts_seq') AS n FROM posts", "", "read-only transaction"),
    (SELECT, "-nothing", "nothing that is called"),
)
"""A SELECT, what its index is called beyond the alias, and what is said."""


def test_what_cannot_be_compared_is_refused(filled: World) -> None:
    """With the reason, and no traceback; nothing can be written through the SELECT."""
    filled.sql("CREATE SEQUENCE posts_seq")
    file = filled.folder / "posts.sql"
    for select, index, message in REFUSED:
        file.write_text(select)
        ended = filled.syncer("verify", "--select", str(file), "--index", filled.alias + index)
        assert (ended.returncode, message in ended.stderr, "Traceback" in ended.stderr) == (1, True, False), ended
