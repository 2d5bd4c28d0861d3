"""Steady: refuses a query whose result can change without a change that a trigger sees.

Such are the clock, random values, the session, samples, system catalogues, and functions that may read tables. A cast
of a text to a date is not refused, although the text may be 'today'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from syncer.base.errors import DefinitionError
from syncer.base.postgres import Connection
from syncer.capture.install import require_capturable

# A function in SQL or a procedural language may read tables that the catalogue does not record; one in C may also read
# the clock or a setting. So only IMMUTABLE ones are trusted outside pg_catalog, and those by name whose settings are
# pinned. SQL cannot call what takes the state of an aggregate, so authors often omit its label. Postgres' own functions
# are distinguished by name: most stable ones depend only on settings, which we pin; timetz_zone depends on the date.
_UNSTEADY = r"""
SELECT DISTINCT CASE WHEN n.nspname = 'pg_catalog' OR p.provolatile = 'v' AND l.lanname IN ('internal', 'c')
                     THEN 'fickle' ELSE 'opaque' END,
                CASE n.nspname WHEN 'pg_catalog' THEN p.proname::text ELSE format('%I.%I', n.nspname, p.proname) END
FROM pg_proc AS p
JOIN pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_language AS l ON l.oid = p.prolang
WHERE p.oid = ANY ($2::oid[]) AND (
      n.nspname <> 'pg_catalog' AND p.provolatile <> 'i' AND NOT 'internal'::regtype = ANY (p.proargtypes)
      AND NOT (p.provolatile = 's' AND l.lanname = 'c' AND p.proname ~ '^(unaccent|st_asgeojson|\w*similarity\w*_op)$')
   OR n.nspname = 'pg_catalog' AND p.provolatile = 'v'
   OR n.nspname = 'pg_catalog' AND p.provolatile = 's' AND (
          p.pronargs = 0 AND p.proname !~ '_build_'
       OR p.proname = 'age' AND p.pronargs = 1
       OR p.prosrc IN ('timetz_zone', 'mxid_age')
       OR p.proname ~ '^(date|time|timetz|timestamp|timestamptz|range|multirange)_in$'
       OR p.proname ~ '^(current_|has_|to_reg|row_security_|pg_(?!typeof$|size_|input_))|_to_xml|_description$'
       OR p.proname = 'format_type'))
"""
# What stored queries mention is found in their text: dependencies lack Postgres' own functions, and those called by
# operators, and by aggregates, which call functions of their own. A name in that text has a backslash before each
# space, so it cannot look like a field.
_MENTIONED = r"""
WITH mention (kind, number) AS (
    SELECT DISTINCT found[1], nullif(found[2], '{')::bigint
    FROM pg_rewrite AS rule,
         regexp_matches(rule.ev_action::text, '[:{](opno|funcid|opfuncid|aggfnoid|winfnoid|relid|varattno|tablesample'
                        '|SQLVALUEFUNCTION :op) (-?\d+|\{)', 'g') AS found
    WHERE rule.oid = ANY ($1) AND (found[1] <> 'relid' OR found[2]::oid <> rule.ev_class)
)
TABLE mention UNION ALL SELECT 'funcid', unnest(ARRAY[g.aggtransfn, g.aggfinalfn]::oid[])::bigint
FROM mention JOIN pg_aggregate AS g ON kind = 'aggfnoid' AND g.aggfnoid = number::oid
"""
# Values whose text is the name of something else, as of a regclass, also in arrays and rows. A text search
# configuration is such a value only if it is shown: otherwise its name has no part in the result. A join lists all
# columns of its tables, which are read only with the row of a join, whose type is that of any record (2249).
_NAMES = r"""
WITH RECURSIVE used (oid, is_shown) AS (
    SELECT found[1]::oid, false
    FROM pg_rewrite AS rule CROSS JOIN LATERAL (
        SELECT CASE WHEN ev_action ~ ':varattno 0 :vartype 2249 ' THEN ev_action::text
                    ELSE regexp_replace(ev_action, ':joinaliasvars .*?:joinleftcols', '', 'g') END
    ) AS r (query), regexp_matches(query, ':(?:vartype|resulttype|funcresulttype|consttype) (\d+)', 'g') AS found
    WHERE rule.oid = ANY ($1)
    UNION
    SELECT a.atttypid, true FROM pg_rewrite AS rule JOIN pg_attribute AS a ON a.attrelid = rule.ev_class
    WHERE rule.oid = ANY ($1) AND a.attnum > 0
    UNION
    SELECT inner_type.oid, u.is_shown OR t.typrelid <> 0
    FROM used AS u JOIN pg_type AS t USING (oid)
    CROSS JOIN LATERAL (
        SELECT t.typelem AS oid UNION ALL SELECT t.typbasetype
        UNION ALL SELECT a.atttypid FROM pg_attribute AS a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS inner_type
)
SELECT 'name', t.typname::text FROM used JOIN pg_type AS t USING (oid)
WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typname ~ '^reg'
  AND (is_shown OR t.typname !~ '(config|dictionary)$')
"""
# An index of these methods returns about the nearest rows, and others once it is built anew.
_APPROXIMATE = """
SELECT DISTINCT 'approximate', n.nspname || '.' || o.oprname
FROM pg_operator AS o JOIN pg_namespace AS n ON n.oid = o.oprnamespace
JOIN pg_amop AS p ON p.amopopr = o.oid AND p.amoppurpose = 'o' JOIN pg_am AS m ON m.oid = p.amopmethod
WHERE o.oid = ANY ($3::oid[]) AND m.amname NOT IN ('gist', 'spgist', 'rum')
"""
_SUSPECTS = f"({_UNSTEADY}) UNION ALL ({_NAMES}) UNION ALL ({_APPROXIMATE}) ORDER BY 1, 2"
# In the order of their numbers: -1 and so on.
_SYSTEM_COLUMNS = ("ctid", "xmin", "cmin", "xmax", "cmax", "tableoid")

_STORE_IT = """No change would tell that the documents are outdated. Put the value it is compared with into the
document, such as published_at, and compare when you search: published_at <= now."""
_WITH_A_DATE = "Show the time as it is; or, if it has a date, convert both: (t.day + t.time) AT TIME ZONE t.zone."

_CLOCK_WORDS = frozenset({"now", "today", "tomorrow", "yesterday"})


def require_steady(connection: Connection, rules: Sequence[int], trees: Sequence[exp.Expr], file: str) -> list[int]:
    """Refuse what stored queries mention, by the rules in pg_rewrite; return the oids of the functions they call.

    ``trees`` are these queries, parsed; none if that is impossible.
    """
    mentions: dict[str, list[int]] = {}
    for kind, number in connection.execute(_MENTIONED, (rules,)):
        mentions.setdefault(kind, []).append(number)
    require_capturable(connection, mentions.get("relid", []), file)
    called = [oid for kind in ("funcid", "opfuncid", "aggfnoid", "winfnoid") for oid in mentions.get(kind, ())]
    suspects: dict[str, list[str]] = {}
    for kind, name in connection.execute(_SUSPECTS, (rules, called, mentions.get("opno", []))):
        suspects.setdefault(kind, []).append(name)
    _require_steady_values(suspects, file)
    if "SQLVALUEFUNCTION :op" in mentions:
        raise _fickle(file, "a keyword such as CURRENT_TIMESTAMP or CURRENT_USER")
    for column in mentions.get("varattno", ()):
        if column < 0:
            raise _fickle(file, f"the system column {_SYSTEM_COLUMNS[-column - 1]}")
    if "tablesample" in mentions:
        raise _fickle(file, "TABLESAMPLE")
    for operator in suspects.get("approximate", ()):
        if not trees or any(_sorts_by(tree, operator) for tree in trees):
            raise DefinitionError(
                f"{file} sorts by {operator}, which an approximate index may answer: its result changes with the index",
                hint="Write ORDER BY (a.embedding <-> b.embedding) + 0, which is exact: no index is used for it.",
            )
    return called


def _require_steady_values(suspects: Mapping[str, Sequence[str]], file: str) -> None:
    """Refuse functions that do not depend on their arguments alone, and values whose text is the name of something."""
    for function in suspects.get("fickle", ()):
        if function == "timezone":
            raise _fickle(file, "a time of day AT TIME ZONE, which takes the zone's offset of today", hint=_WITH_A_DATE)
        raise _fickle(file, f"{function}()")
    for function in suspects.get("opaque", ()):
        raise DefinitionError(
            f"{file} calls {function}, and syncer cannot determine what it reads besides its arguments",
            hint="Write its query into the SELECT; or, if it depends on its arguments alone, declare it IMMUTABLE.",
        )
    for type_ in suspects.get("name", ()):
        raise DefinitionError(
            f"{file} uses a value of type {type_}, whose text changes without a commit of its table",
            hint="The text is a name in the catalogue. If that is renamed, no change tells that documents are old.\n"
            "Keep the oid in a column of type oid, or the name in a column of type text.",
        )


def _sorts_by(tree: exp.Expr, operator: str) -> bool:
    """Whether a query sorts by the result of an operator, or by a column that is one."""
    results = {use for use in tree.find_all(exp.Operator) if use.args["operator"] == operator}
    names = {column.alias for column in tree.find_all(exp.Alias) if column.this.unnest() in results}
    keys = [ordered.this.unnest() for ordered in tree.find_all(exp.Ordered)]
    return any(key in results or (isinstance(key, exp.Column) and key.name in names) for key in keys)


def require_no_clock_words(query: str, canonical: str, file: str) -> None:
    """Refuse ``'today'::date`` and similar casts, which Postgres has folded to a constant.

    Those that it does not fold, as in ``('today'::text)::date``, are accepted.
    """
    try:
        written_words, canonical_words = (
            Counter(token.text.strip().lower() for token in tokens if token.token_type is TokenType.STRING)
            for tokens in (sqlglot.tokenize(text, read="postgres") for text in (query, canonical))
        )
    except SqlglotError:  # cannot be parsed: affects queries are required anyway
        return
    for word in sorted((written_words - canonical_words).keys() & _CLOCK_WORDS):
        raise _fickle(file, f"'{word}'")


def _fickle(file: str, subject: str, *, hint: str = _STORE_IT) -> DefinitionError:
    return DefinitionError(f"{file} uses {subject}, whose value changes without a commit", hint=hint)
