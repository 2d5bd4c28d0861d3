"""What the tests of derivations share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.derivation import Judge
from tests.support.random_tables import SCHEMA
from tests.support.world import World

HELPERS = """
CREATE FUNCTION one_more(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT coalesce($1, 0) + 1';
CREATE FUNCTION alike(int, int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT coalesce($1, 0) = $2';
CREATE OPERATOR "other.one".= (FUNCTION = alike, LEFTARG = int, RIGHTARG = int);
CREATE FUNCTION noted(internal, bigint) RETURNS internal LANGUAGE internal AS 'int8_avg_accum';
CREATE FUNCTION average(internal) RETURNS numeric LANGUAGE internal AS 'numeric_poly_avg';
CREATE AGGREGATE own_average(bigint) (SFUNC = noted, STYPE = internal, FINALFUNC = average);
CREATE FUNCTION twice(int) RETURNS SETOF int LANGUAGE sql IMMUTABLE AS 'SELECT $1 UNION ALL SELECT $1 + 1';
"""


@pytest.fixture(scope="module")
def judge(module_world: World) -> Iterator[Judge]:
    """One database, and one connection to it, for all tests of a module."""
    module_world.sql(SCHEMA + HELPERS)
    with module_world.connect() as connection:
        judge = Judge(connection)
        judge.set_up()
        yield judge
