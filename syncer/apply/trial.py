"""Trial: writes a sample of documents to a scratch index that is configured as apply would leave the real one.

It shows which documents the SELECT cannot build, and which of them Elasticsearch rejects.

Guarantees: the sample is bounded in documents, bytes and time. Nothing is left behind in Postgres or Elasticsearch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import psycopg
from psycopg import errors as pg
from psycopg.types.json import Jsonb

from syncer.apply.plan import NEEDS_INDEX, Step
from syncer.base.error_policy import ITEM_FAILED, Action, decide_item, is_of_some_rows
from syncer.base.errors import DocumentError, IndexingError
from syncer.base.formatting import amount, shortened, shown_id, without_values
from syncer.base.lifecycle import clock
from syncer.base.model import Composition
from syncer.base.postgres import SESSION, Connection
from syncer.documents import queries
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.documents.snapshot import reading
from syncer.elasticsearch.bulk import Index, Rejection
from syncer.elasticsearch.indices import Indices
from syncer.elasticsearch.reader import Copy
from syncer.verify.diff import compare

BYTES_MAX = 5_000_000
SECONDS_MAX = 2.0
"""How long the sample is chosen, built and written, each."""
_COUNT_SECONDS_MAX = 10.0
# What distinguishes the rejections of two documents for the same reason, besides the value after a colon.
_OF_ONE_DOCUMENT = re.compile(r"\[-?\d+:-?\d+\] | in document with id '.*?'| in doc \[.*?\]", re.DOTALL)
_TRIED_AGAIN_MAX = 50
"""How many documents are built again with other settings."""
_TO_MAP = "Add the field to index.json: syncer init --from-select adds every field that it lacks."
_TO_FIX = "Fix the mapping, the SELECT or the data: such documents are not written."
_TO_CHAR = """If the text matters, use to_char with a format. Show a range by its bounds, as a date_range takes them:
jsonb_build_object('gte', lower(p.valid), 'lt', upper(p.valid))."""
# In one of the two zones, any instant has another date than in UTC.
_SETTINGS = {
    "TimeZone": (
        ("Pacific/Kiritimati", "Etc/GMT+12"),
        "Name the zone, as in: (placed AT TIME ZONE 'America/New_York')::date.",
    ),
    "DateStyle": (("German",), _TO_CHAR),
    "IntervalStyle": (("postgres",), _TO_CHAR),
    "default_text_search_config": (
        ("pg_catalog.english",),
        "Name the configuration, as in: to_tsvector('english', p.body).",
    ),
}
"""The settings to try, with other values than syncer's, and what to write instead of what depends on them."""
_SET = "SELECT pg_catalog.set_config(key, value, true) FROM pg_catalog.jsonb_each_text($1)"
_INSTANT = re.compile(r"\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:\d\d){0,2}( BC)?")

# Postgres calls them as the role that plans or casts, whatever the SELECT names. A superuser needs no such way.
_TRUSTED = """
WITH RECURSIVE type (oid) AS (
    SELECT atttypid FROM pg_attribute WHERE attrelid = ANY ($1::text[]::regclass[]) AND attnum > 0
    UNION SELECT typbasetype FROM type JOIN pg_type USING (oid) WHERE typtype = 'd'
), caller (class, oid) AS (
    SELECT 'pg_class'::regclass, indexrelid FROM pg_index WHERE indrelid = ANY ($1::text[]::regclass[])
    UNION SELECT 'pg_statistic_ext'::regclass, oid FROM pg_statistic_ext WHERE stxrelid = ANY ($1::text[]::regclass[])
    UNION SELECT 'pg_constraint'::regclass, k.oid FROM pg_constraint AS k JOIN type ON k.contypid = type.oid
)
SELECT DISTINCT format('%s of %I', p.oid::regprocedure, r.rolname)
FROM caller
CROSS JOIN LATERAL (SELECT * FROM pg_depend WHERE classid = caller.class AND objid = caller.oid OFFSET 0) AS d
JOIN pg_proc AS p ON p.oid = d.refobjid AND d.refclassid = 'pg_proc'::regclass JOIN pg_roles AS r ON r.oid = p.proowner
WHERE p.pronamespace <> 'pg_catalog'::regnamespace AND r.rolname <> current_user AND NOT r.rolsuper ORDER BY 1
"""


class PlanSeverity(StrEnum):
    """How bad a problem is, the worst first."""

    REFUSED = "refused"
    """apply does not accept the definition."""
    ERROR = "error"
    """Documents cannot be written."""
    WARNING = "warning"
    """Documents are written, probably not as intended."""
    NOTE = "note"
    """It may be intended."""


@dataclass(frozen=True, slots=True)
class PlanProblem:
    """A problem of a definition, and what to do about it."""

    severity: PlanSeverity
    message: str
    action: str = ""


def take_sample(
    connection: Connection, document: Document, ids: list[str], count: int | None
) -> tuple[int | None, dict[str, Row], dict[str, str]]:
    """Build the documents with these ids, to try them; count all, unless that is done.

    Returns:
        The number of all documents, None if counting took too long or failed; those to try, by id; why others fail.
    """
    sample, failures = _build(connection, document, ids)
    try:
        with suppress(pg.QueryCanceled):
            count = count if count is not None else queries.count(connection, document, seconds=_COUNT_SECONDS_MAX)
    except DocumentError as error:
        if (message := _message(error)) not in failures.values():
            failures[""] = message
    return count, sample, failures


def write_sample(
    index: Index, indices: Indices, step: Step, sample: dict[str, Row], failures: dict[str, str]
) -> list[PlanProblem]:
    """Try what apply would do to one document's index; return the problems. It uses Elasticsearch alone.

    Raises:
        IndexingError: Elasticsearch refuses index.json.
    """
    document = step.document
    live = None if step.change in NEEDS_INDEX else document.target
    with indices.scratch(
        document=document.name,
        alias=document.index,
        body=document.index_body,
        live=live,
        has_routing=document.dependencies.has_routing,
    ) as (target, shortcomings):
        if document.dependencies.has_routing:
            index.holdings.shards(target)  # refuses a server that routes otherwise than syncer computes
        # Unmoved, since the index is empty: other shards have nothing to delete, nor the log of deletes to keep.
        untried = [
            Composition(id=id_, version=1, source=row.source, routing=row.routing, is_unmoved=True)
            for id_, row in sample.items()
        ]
        rejections, began = list[Rejection](), clock()
        while untried and (not rejections or clock() - began < SECONDS_MAX):
            outcome = index.write(target, untried)
            rejections, untried = rejections + outcome.rejections, outcome.untried
            _require_tried(document, outcome.rejections)
        tried = sample.keys() - {composition.id for composition in untried}
        indexed = {id_: sample[id_] for id_ in tried - {refused.composition.id for refused in rejections}}
        problems = list(_read_back(indexed, index.holdings.read(target, list(indexed))))
        shown = live.index_name if live else f"a new index for {document.name}"
        # What documents have added to the mapping matters only if they are not read back.
        for shortcoming in index.holdings.shortcomings(target) if problems else shortcomings:
            message = shortcoming.problem.replace(target.index_name, shown)
            problems.append(PlanProblem(PlanSeverity.WARNING, message, shortcoming.advice))
    shown_number = amount(len(tried) + sum(map(bool, failures)), "sampled document")
    return [*problems, *_errors(failures, rejections, shown_number)]


def _require_tried(document: Document, rejections: list[Rejection]) -> None:
    """Refuse to blame documents that the cluster takes no more than any other."""
    for status, kind, reason in (rejection[1:] for rejection in rejections):
        if status != ITEM_FAILED and decide_item(status, kind, reason) is not Action.DEAD_LETTER:
            raise IndexingError(
                f"The sampled documents of {document.name} are not taken: {kind}: {reason}",
                hint="That is no fault of theirs. Once it is put right, run the same command again.",
            )


def _build(connection: Connection, document: Document, ids: list[str]) -> tuple[dict[str, Row], dict[str, str]]:
    """Return the sample, and why the SELECT fails on other documents, by id.

    The first request is for one document, and each for 16 times as many as the one before, if they fit when they are
    like those. After a failure it begins with one document again, to find the one at fault.
    """
    size, began = 1, clock()
    sample: dict[str, Row] = {}
    failures: dict[str, str] = {}
    while ids:
        try:
            with suppress(pg.QueryCanceled), reading(connection, document, statement_seconds=SECONDS_MAX):
                while ids and clock() - began < SECONDS_MAX:
                    sample |= queries.rows(connection, document, ids[:size])
                    total = sum(len(row.source) for row in sample.values())
                    if total >= BYTES_MAX:
                        break
                    ids, size = ids[size:], min(size * 16, 1 + (BYTES_MAX - total) * len(sample) // max(total, 1))
            break
        except DocumentError as error:
            message = _message(error)
            if size == 1:
                failures[ids[0]] = message
                ids = ids[1:]
            size = 1
    return sample, failures


def _message(error: DocumentError) -> str:
    """Return Postgres' message if the SELECT fails on a row; raise any other error again."""
    cause = error.__cause__
    if not (isinstance(cause, psycopg.Error) and is_of_some_rows(cause)):
        raise error
    return str(cause.diag.message_primary)


def _errors(failures: dict[str, str], rejections: list[Rejection], tried: str) -> Iterator[PlanProblem]:
    """Yield why documents cannot be built, and why Elasticsearch rejects others: each reason once, with an example."""
    for message in dict.fromkeys(failures.values()):
        ids = [id_ for id_, failure in failures.items() if failure == message and id_]
        shown = f"{len(ids):,} of {tried} cannot be built, for example {shown_id(ids[0])}: " if ids else ""
        yield PlanProblem(PlanSeverity.ERROR, f"{shown}the SELECT fails on the data: {message}", _TO_FIX)
    alike: dict[tuple[str, str], list[Rejection]] = {}
    for rejection in rejections:
        reason = _OF_ONE_DOCUMENT.sub("", rejection.reason)
        alike.setdefault((rejection.kind, reason.partition(":")[0]), []).append(rejection)
    for group in alike.values():
        example = group[0]
        are, reason = "are" if len(group) > 1 else "is", without_values(_OF_ONE_DOCUMENT.sub("", example.reason))
        message = f"{len(group):,} of {tried} {are} rejected, for example {shown_id(example.composition.id)}: "
        message += f"{example.kind}: {shortened(reason)}"
        is_unmapped = example.kind == "strict_dynamic_mapping_exception"
        yield PlanProblem(PlanSeverity.ERROR, message, _TO_MAP if is_unmapped else _TO_FIX)


def _read_back(rows: dict[str, Row], copies: list[Copy]) -> Iterator[PlanProblem]:
    """Yield what Elasticsearch returns otherwise than it was written, compared as `syncer verify` compares it."""
    drifts = list(compare(rows, copies))
    if drifts:
        fields = sorted({difference.path.partition("[")[0] for drift in drifts for difference in drift.differences})
        yield PlanProblem(
            PlanSeverity.REFUSED,
            f"{len(drifts):,} of {amount(len(rows), 'sampled document')} are read back otherwise than they "
            f"were written, for example {shown_id(drifts[0].id)}: {shortened(', '.join(fields)) or drifts[0].kind}",
            "syncer could never find such documents equal to their SELECT. See what index.json, or a template "
            "of the\ncluster, does to these fields, and whether the role may read all documents and fields.",
        )


def notes(connection: Connection, document: Document, ids: list[str]) -> Iterator[PlanProblem]:
    """Yield what fields depend on besides the rows: an order that nothing determines, and settings of the session."""
    from syncer.lineage.unordered import unordered_fields  # noqa: PLC0415 - it imports sqlglot, which is slow to load

    select, views, tables = (getattr(document.dependencies, of) for of in ("canonical_select", "views", "tables"))
    unordered, rounded, arbitrary = unordered_fields(connection, select, views, tables)
    note = partial(PlanProblem, PlanSeverity.NOTE)
    if unordered:
        yield note(
            f"{', '.join(sorted(unordered))}: an aggregate has no ORDER BY. Its elements may come in another "
            "order each time, and verify then reports a difference",
            "Add ORDER BY inside it, as in: jsonb_agg(c.name ORDER BY c.id).",
        )
    if arbitrary:
        yield note(
            f"{', '.join(sorted(arbitrary))}: of several rows, LIMIT, DISTINCT ON or a window without ORDER BY "
            "takes any. It may be another one after an UPDATE of another column, and verify then reports a difference",
            "Add ORDER BY up to a key, as in: ORDER BY c.created_at, c.id LIMIT 1.",
        )
    if rounded:
        yield note(
            f"{', '.join(sorted(rounded))}: a sum of floating-point numbers depends on their order in the last "
            "digits, and verify reports those as rounding",
            "To have it exact, sum numeric values, as in: sum(c.score::numeric).",
        )
    if trusted := [function for (function,) in connection.execute(_TRUSTED, (list(tables),))]:
        yield note(
            f"indexes, statistics or domains of its tables call {', '.join(trusted)}: Postgres runs them as "
            "syncer's role",
            "Their owners can make them do anything that this role may: see docs/security.md.",
        )
    depending: dict[str, set[str]] = {}
    with suppress(pg.QueryCanceled):
        for setting, fields in _depending(connection, document, ids[:_TRIED_AGAIN_MAX]):
            depending.setdefault(setting, set()).update(fields - unordered - rounded - arbitrary)
    for setting, names in depending.items():
        if names:
            yield note(
                f"{', '.join(sorted(names))}: depends on {setting}. syncer uses {SESSION[setting]}, whatever "
                "the database, the role or psql use",
                _SETTINGS[setting][1],
            )


def _depending(connection: Connection, document: Document, ids: list[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield the fields of these documents that differ with another value of a setting, in one snapshot."""
    # Several at once to begin with: as a rule, nothing depends on any.
    tries = [
        {setting: values[turn] for setting, (values, _) in _SETTINGS.items() if turn < len(values)}
        for turn in range(max(len(values) for values, _ in _SETTINGS.values()))
    ]
    while tries:
        # Beside writers, two snapshots differ as well. If the SELECT fails under a setting, the rest has another one.
        with suppress(DocumentError), reading(connection, document, statement_seconds=SECONDS_MAX):
            pinned = _fields(queries.rows(connection, document, ids))
            while tries:
                values, *later = tries
                alone = [{setting: value} for setting, value in values.items()] if len(values) > 1 else []
                tries = [*alone, *later]
                connection.execute(_SET, (Jsonb({name: SESSION[name] for name in _SETTINGS} | values),))
                built = _fields(queries.rows(connection, document, ids))
                differing = {key[1] for key, content in pinned.items() if built.get(key, content) != content}
                if not alone:
                    yield next(iter(values)), differing
                elif not differing:
                    tries = later


def _fields(rows: Mapping[str, Row]) -> dict[tuple[str, str], str]:
    """Return the JSON of fields by id and name, without instants: one shown with its offset is the same in any zone."""
    contents = {}
    for id_, row in rows.items():
        with suppress(RecursionError):  # it is nested too deep to be parsed
            for field, content in json.loads(
                row.source.decode(errors="replace"), parse_int=str, parse_float=str
            ).items():
                contents[id_, field] = _INSTANT.sub("", json.dumps(content))
    return contents
