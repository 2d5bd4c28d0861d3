"""Steady: refuses a query whose result can change without a change that a trigger sees.

Such are the clock, random values, the session, samples, system catalogues, and functions that may read tables. A cast
of a text to a date is not refused, although the text may be 'today'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from syncer.base.errors import DefinitionError
from syncer.base.postgres import Connection
from syncer.capture.install import require_capturable

# A function in SQL or a procedural language may read tables that the catalogue does not record; so may extension
# functions that run a query given as an argument. Postgres' own are distinguished by name: most stable ones depend only
# on settings, which we pin.
_UNSTEADY = r"""
SELECT DISTINCT CASE n.nspname WHEN 'pg_catalog' THEN p.proname::text ELSE format('%I.%I', n.nspname, p.proname) END,
       n.nspname = 'pg_catalog' OR p.provolatile = 'v' AND l.lanname IN ('internal', 'c')
FROM pg_proc AS p
JOIN pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_language AS l ON l.oid = p.prolang
WHERE p.oid = ANY ($1::oid[]) AND (
      p.provolatile = 'v'
   OR p.provolatile = 's' AND n.nspname <> 'pg_catalog'
      AND (l.lanname NOT IN ('internal', 'c') OR p.proname ~ '^(connectby|crosstab|xpath_table$)')
   OR p.provolatile = 's' AND n.nspname = 'pg_catalog' AND (
          p.pronargs = 0 AND p.proname !~ '_build_'
       OR p.proname = 'age' AND p.pronargs = 1
       OR p.proname ~ '^(date|time|timetz|timestamp|timestamptz|range|multirange)_in$'
       OR p.proname ~ '^(current_|has_|to_reg|row_security_|pg_(?!typeof$|size_|input_))|_to_xml|_description$'))
ORDER BY 1
"""
# What stored queries mention is found in their text: dependencies lack Postgres' own functions, and those called by
# operators and aggregates. A name in that text has a backslash before each space, so it cannot look like a field.
_MENTIONED = r"""
SELECT DISTINCT found[1], nullif(found[2], '{')::bigint
FROM pg_rewrite AS rule,
     regexp_matches(rule.ev_action::text, '[:{](funcid|opfuncid|aggfnoid|winfnoid|relid|varattno|tablesample'
                    '|SQLVALUEFUNCTION :op) (-?\d+|\{)', 'g') AS found
WHERE rule.oid = ANY ($1)
"""
# Aggregates call functions of their own.
_CALLED = """
SELECT unnest($1::oid[])
UNION SELECT unnest(ARRAY[aggtransfn, aggfinalfn]::oid[]) FROM pg_aggregate WHERE aggfnoid = ANY ($1)
"""
_CATALOGUES = """
SELECT oid FROM pg_class
WHERE oid = ANY ($1::oid[]) AND relnamespace = 'pg_catalog'::regnamespace ORDER BY relkind <> 'v', relname
"""
# In the order of their numbers: -1 and so on.
_SYSTEM_COLUMNS = ("ctid", "xmin", "cmin", "xmax", "cmax", "tableoid")

_CLOCK_WORDS = frozenset({"now", "today", "tomorrow", "yesterday"})


def require_steady(connection: Connection, rules: Sequence[int], file: str) -> list[int]:
    """Refuse what stored queries mention, by the rules in pg_rewrite; return the oids of the functions they call."""
    mentions: dict[str, list[int]] = {}
    for kind, number in connection.execute(_MENTIONED, (rules,)):
        mentions.setdefault(kind, []).append(number)
    for (oid,) in connection.execute(_CATALOGUES, (mentions.get("relid", []),)).fetchall():
        require_capturable(connection, oid, file)
    calls = [oid for kind in ("funcid", "opfuncid", "aggfnoid", "winfnoid") for oid in mentions.get(kind, ())]
    called = [oid for (oid,) in connection.execute(_CALLED, (calls,))]
    for function, is_fickle in connection.execute(_UNSTEADY, (called,)).fetchall():
        if is_fickle:
            raise _fickle(file, f"{function}()")
        raise DefinitionError(
            f"{file} calls {function}, and syncer cannot determine which tables that function reads",
            hint="Write its query into the SELECT; or, if it reads no table, declare the function IMMUTABLE.",
        )
    if "SQLVALUEFUNCTION :op" in mentions:
        raise _fickle(file, "a keyword such as CURRENT_TIMESTAMP or CURRENT_USER")
    for column in mentions.get("varattno", ()):
        if column < 0:
            raise _fickle(file, f"the system column {_SYSTEM_COLUMNS[-column - 1]}")
    if "tablesample" in mentions:
        raise _fickle(file, "TABLESAMPLE")
    return called


def require_no_clock_words(query: str, canonical: str, file: str) -> None:
    """Refuse ``'today'::date`` and similar casts, which Postgres has folded to a constant.

    Those that it does not fold, as in ``('today'::text)::date``, are accepted.
    """
    try:
        before, after = (
            Counter(token.text.strip().lower() for token in tokens if token.token_type is TokenType.STRING)
            for tokens in (sqlglot.tokenize(text, read="postgres") for text in (query, canonical))
        )
    except SqlglotError:  # cannot be parsed: affects queries are required anyway
        return
    for word in sorted((before - after).keys() & _CLOCK_WORDS):
        raise _fickle(file, f"'{word}'")


def _fickle(file: str, what: str) -> DefinitionError:
    return DefinitionError(
        f"{file} uses {what}, whose value changes without a commit",
        hint="No change would tell that the documents are outdated. Put the value it is compared with into the\n"
        "document, such as published_at, and compare when you search: published_at <= now.",
    )
