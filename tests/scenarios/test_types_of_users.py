"""Types and functions that users make or install: a document shows them, is found by them, and is one of them.

Also run on other versions of Postgres, which bring other extensions and look names up in other ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import pytest

from syncer.base.errors import DefinitionError
from tests.support.derivation import Judge
from tests.support.in_process import handling
from tests.support.world import World

SCHEMA = """
CREATE SCHEMA "My types";
CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy');
CREATE DOMAIN address AS text CHECK (VALUE LIKE '%@%');
CREATE DOMAIN "My types"."Code" AS varchar(9) NOT NULL;
CREATE TYPE size AS (width int, height numeric(5, 2));
CREATE TABLE person (
    id int PRIMARY KEY, mood mood, moods mood[], mail address UNIQUE, mails address[], size size, sizes size[],
    code "My types"."Code", born daterange, first text, last text
);
CREATE TABLE visit (id int PRIMARY KEY, mood mood, mail address, born daterange);
CREATE FUNCTION full_name(person) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT $1.first || ' ' || $1.last $$;
CREATE FUNCTION shown(mood, "My types"."Code") RETURNS text LANGUAGE plpgsql IMMUTABLE
    AS $$ BEGIN RETURN $1::text || $2; END $$;
CREATE VIEW moody AS SELECT mood, array_agg(id ORDER BY id) AS visits FROM visit GROUP BY mood;
"""
SELECTS = {
    "shows": "SELECT p.id AS _id, p.mood, p.moods, p.mail, p.mails, p.size, p.sizes, p.code, p.born, p.full_name,"
    " shown(p.mood, p.code) AS shown FROM person AS p",
    "joins": "SELECT p.id AS _id, m.visits, (SELECT count(*) FROM visit AS v WHERE v.mail = p.mail) AS n,"
    " (SELECT max(v.id) FROM visit AS v WHERE v.born = p.born) AS newest"
    " FROM person AS p LEFT JOIN moody AS m ON m.mood = p.mood",
    "is_a_domain": "SELECT p.mail AS _id, p.last FROM person AS p",
    "is_an_enum": "SELECT v.mood AS _id, count(*) AS n FROM visit AS v GROUP BY v.mood",
    "is_grouped": "SELECT v.mail AS _id, count(*) AS n FROM visit AS v WHERE v.mail IS NOT NULL GROUP BY v.mail",
}
TEMPORAL = (
    "CREATE TABLE price (product int4range, valid daterange, amount int, PRIMARY KEY (product, valid WITHOUT OVERLAPS))"
)
WRITES = (
    """INSERT INTO person SELECT n, 'sad', '{sad,happy}', 'p' || n || '@x', ARRAY['a@b'::address], (n, 1.5)::size,
    '{}', 'c', '[2000-01-01,2001-01-01)', 'Ann', 'Lee' FROM generate_series(1, 3) AS n""",
    "INSERT INTO visit VALUES (1, 'sad', 'p1@x', NULL), (2, 'happy', 'p2@x', '[2000-01-01,2001-01-01)')",
    "UPDATE person SET mood = 'happy', mail = 'q@x', size = (7, 2) WHERE id = 2; UPDATE person SET last = 'Low'",
    "UPDATE visit SET mood = 'so so', mail = 'p3@x', born = '[2001-01-01,)' WHERE id = 2",
    "UPDATE person SET born = '[2001-01-01,)', mood = 'so so', moods = NULL, mails = '{}' WHERE id = 3",
    "DELETE FROM visit WHERE id = 1; DELETE FROM person WHERE id = 1",
)


def test_types_of_users_are_shown_joined_and_identified_by(empty_world: World) -> None:
    """What a name of a type or function stands for is asked as such, also where that is no name of a relation.

    An enum, a domain, arrays of both, composites, a range, a computed field, and a temporal key where there are any.
    """
    world, selects, writes = empty_world, dict(SELECTS), list(WRITES)
    world.uses_kafka = False
    world.use()
    world.sql(SCHEMA)
    with world.connect() as connection:
        has_temporal_keys = connection.info.server_version >= 180000
    if has_temporal_keys:
        world.sql(TEMPORAL)
        selects["is_temporal"] = "SELECT p.product::text || p.valid::text AS _id, p.amount FROM price AS p"
        writes.append("INSERT INTO price VALUES ('[1,1]', '[2026-01-01,)', 5), ('[2,2]', '[2026-01-01,)', 6)")
        writes.append("UPDATE price SET valid = '[2027-01-01,)', amount = 7 WHERE product = '[1,1]'")
    for name, select in selects.items():
        world.define(name, select, {"dynamic": True})
    world.documents = tuple(selects)
    world.migrate()
    world.prints("plan")
    world.apply()
    with handling(world):
        for write in writes:
            world.sql(write)
            world.wait_until_level()
    assert all(world.held(name) for name in selects)


VALUES = {
    "citext": ("A@x", "a@x", "b"),
    "ltree": ("Top.A", "Top.A.B", "Top"),
    "hstore": ("a=>1", "a=>NULL", "a=>2, b=>x"),
    "vector": ("[0.1,2]", "[1e-7,3]", "[0.3,2]"),
}
"""Types of extensions with values; an extension that the server does not bring is left out."""
TABLES = """
CREATE EXTENSION {type};
CREATE TABLE {type}_parent (key {type} PRIMARY KEY, name text);
CREATE TABLE {type}_child (id int PRIMARY KEY, key {type}, v int);
"""
USED = {
    "a field and a join": "SELECT c.id AS _id, c.key, p.name FROM {t}_child AS c LEFT JOIN {t}_parent AS p"
    " ON p.key = c.key",
    "an id and what belongs to it": "SELECT p.key::text AS _id, p.name, (SELECT sum(c.v) FROM {t}_child AS c"
    " WHERE c.key = p.key) AS v FROM {t}_parent AS p",
    "in both": "SELECT c.id AS _id, c.v FROM {t}_child AS c WHERE EXISTS (SELECT FROM {t}_parent AS p"
    " WHERE c.key = p.key)",
    "listed": "SELECT c.id AS _id, c.v FROM {t}_child AS c WHERE c.key IN (SELECT p.key FROM {t}_parent AS p)",
    "grouped": "SELECT c.key::text AS _id, sum(c.v) AS v FROM {t}_child AS c GROUP BY c.key::text",
}
REFUSED = {
    "SELECT c.id AS _id, p.name FROM {t}_child AS c LEFT JOIN {t}_parent AS p USING (key)": "Write each comparison out",
    "SELECT c.id AS _id, NULLIF(c.key, p.key) AS v FROM {t}_child AS c JOIN {t}_parent AS p ON p.key = c.key": "NULLIF",
    "SELECT c.key AS _id, sum(c.v) AS v FROM {t}_child AS c GROUP BY c.key": "::text",
    "SELECT p.key AS _id, p.name FROM {t}_parent AS p": "Select its text, as in: p.path::text AS _id",
}
"""What is not derived, and what it says to write instead: all of that is in USED."""


@pytest.fixture(scope="module")
def judge(module_world: World) -> Iterator[Judge]:
    """Tables with keys and references of each type that there is."""
    available = {name for (name,) in module_world.sql("SELECT name FROM pg_available_extensions")}
    for type_ in VALUES.keys() & available:
        module_world.sql(TABLES.format(type=type_))
    with module_world.connect() as connection:
        judge = Judge(connection)
        judge.set_up()
        yield judge


def require_type(judge: Judge, type_: str) -> None:
    """Skip a type that the server does not bring."""
    if not judge.connection.execute("SELECT FROM pg_extension WHERE extname = $1", (type_,)).fetchall():
        pytest.skip(f"this Postgres has no {type_}")


@pytest.mark.parametrize("type_", VALUES)
@pytest.mark.parametrize("select", USED.values(), ids=USED.keys())
def test_a_type_of_an_extension_is_a_field_a_key_and_a_link(judge: Judge, type_: str, select: str) -> None:
    """Its own operator = is followed like one of Postgres: no document is missed, also where texts differ."""
    require_type(judge, type_)
    one, two, three = VALUES[type_]
    judge.derive(select.format(t=type_))
    writes = (
        [f"INSERT INTO {type_}_child VALUES (1, '{one}', 1), (2, '{two}', 2), (3, '{three}', 3)"],
        [f"INSERT INTO {type_}_parent VALUES ('{two}', 'second'), ('{three}', 'third')"],
        [f"UPDATE {type_}_child SET key = '{one}', v = 7 WHERE id = 3"],
        [f"UPDATE {type_}_parent SET key = '{one}', name = 'first' WHERE name = 'second'"],
        [f"DELETE FROM {type_}_parent WHERE key = '{three}'", f"UPDATE {type_}_child SET key = NULL WHERE id = 1"],
    )
    with judge.undone():
        judge.require_nothing_missed(writes, Random(1))


@pytest.mark.parametrize("type_", VALUES)
@pytest.mark.parametrize(("select", "advice"), REFUSED.items())
def test_what_a_type_of_an_extension_cannot_be_is_said_with_what_to_write(
    judge: Judge, type_: str, select: str, advice: str
) -> None:
    """The reason is the type, and the advice is accepted; a citext is found as a text."""
    require_type(judge, type_)
    if type_ == "citext" and "p.key AS _id" in select:
        judge.derive(select.format(t=type_))
        return
    with pytest.raises(DefinitionError) as refused:
        judge.derive(select.format(t=type_))
    assert re.search(re.escape(advice), f"{refused.value} {refused.value.hint}")


NEAREST = (
    "SELECT c.id AS _id, (SELECT n.id FROM (SELECT x.id, x.key <-> c.key AS far FROM {t} AS x) AS n"
    " ORDER BY n.far LIMIT 1) AS nearest FROM {t} AS c"
)


@pytest.mark.parametrize("operator", ["<->", "<=>", "<#>"])
def test_an_approximate_order_is_refused(judge: Judge, operator: str) -> None:
    """Rows in the order of a vector index change with the index; an order that no index has is exact, and accepted."""
    require_type(judge, "vector")
    affects = {"vector_child": "SELECT c.id AS _id FROM vector_child AS c WHERE EXISTS (SELECT FROM %(rows)s)"}
    select = NEAREST.format(t="vector_child").replace("<->", operator)
    for ordered in (select, select.replace("n.far", f"(SELECT 1 ORDER BY c.key {operator} c.key)")):
        with pytest.raises(DefinitionError, match=r"sorts by public\..* an approximate index"):
            judge.derive(ordered, affects)
    judge.derive(select.replace("ORDER BY n.far", "ORDER BY n.far + 0"), affects)
    judge.derive(f"SELECT c.id AS _id, c.key {operator} '[1,2]' AS far FROM vector_child AS c")
