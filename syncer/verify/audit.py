"""Audit: compares an index that syncer does not write with a SELECT. Nothing is written on either side.

Whatever fills the index, `syncer.verify.compare` walks both sides as it does for an index of syncer's. Three things are
other. Values are compared by what the mapping makes of them: see `syncer.verify.meaning`. Only the fields that the
SELECT returns are compared. And which changes are in flight is unknown, so what differs is read again, three times,
each after a time that changes may take. What differs then and has kept its version has *drifted*; what something writes
all the while is *busy*.

Needs no schema of syncer's: SELECT on the tables, and ``read`` and ``view_index_metadata`` on the index. Documents are
read in ranges with short snapshots if ``_id`` is a unique column, unless one snapshot for all costs much less.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import msgspec
import psycopg

from syncer.base.errors import ComposeError, DefinitionError, DocumentError
from syncer.base.model import Target
from syncer.base.postgres import Connection, value
from syncer.documents import queries
from syncer.documents.queries import IdRange, Row
from syncer.documents.registry import Dependencies, Document
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import Copy
from syncer.verify import compare, diff, meaning
from syncer.verify.compare import Differing, Settled, Settler, VerifyReport
from syncer.verify.diff import Compared, Difference, Drift
from syncer.verify.meaning import Meaning

READINGS = 3
"""How often a document that differs is read again."""
_WHOLE_COSTS_MORE = 2
"""How much more the ranges may cost than one query for all documents: each has a short snapshot in return."""
_ORIGIN = "SELECT a.attrelid::regclass::text, a.attname FROM pg_attribute AS a WHERE a.attrelid = $1 AND a.attnum = $2"
_SESSION = "SET default_transaction_read_only = on; SET search_path TO DEFAULT"
_PREFIX = "SELECT * FROM ("
_JSON = msgspec.json.Decoder(float_hook=Decimal)
_NORMAL = msgspec.json.Encoder(decimal_format="number", order="sorted")


@dataclass(slots=True, kw_only=True)
class AuditReport(VerifyReport):
    """What an audit found.

    Args:
        not_compared: Fields of the index that the SELECT does not return.
        is_refreshed: False if nothing but a request refreshes an index: what was written since is not seen.
        has_common_id: Whether any id is in both.
    """

    not_compared: set[str] = field(default_factory=set)
    is_refreshed: bool = True
    has_common_id: bool = False


def audit(
    connect: Callable[[], Connection],
    select: str,
    *,
    file: str,
    index: Index,
    name: str,
    ignored: frozenset[str] = frozenset(),
    settle_seconds: float,
    values: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> AuditReport:
    """Compare every document of an index, an alias or a data stream with a SELECT; ``file`` is for errors.

    Raises:
        DefinitionError: Postgres refuses the SELECT, it has no ``_id``, or returns an id more than once.
        IndexingError: There is no such index, or it stores no ``_source``.
    """
    target = Target(index_name=name, write_alias=name)
    mappings, refresh_seconds = index.holdings.mappings(target), index.holdings.refresh_seconds(target)
    report = AuditReport(document=name, index_name=name, is_refreshed=refresh_seconds > 0)
    with connect() as walking, connect() as connection:
        for session in (walking, connection):  # they cannot write, and resolve names as the role does
            session.execute(_SESSION, prepare=False)
        document = _document(connection, select, file, target)
        names = document.dependencies.fields
        if unknown := sorted(path for path in ignored if path.partition(".")[0] not in _first_names(names)):
            problem = f"{file} returns no field {', '.join(unknown)} to ignore"
            raise DefinitionError(problem, hint=f"It has: {', '.join(names)}")
        auditor = Auditor(
            document=document,
            index=index,
            connection=connection,
            settle_seconds=max(settle_seconds, refresh_seconds),
            values=values,
            retries=True,
            report=report,
            meanings={name: Meaning(mapping, ignored=ignored) for name, mapping in sorted(mappings.items())},
        )
        try:
            compare.walk(walking, auditor, report, progress=progress)
        except DocumentError as error:  # its hint is for a definition that is applied
            if isinstance(error.__cause__, ComposeError):
                hint = "If a join multiplies rows, aggregate the joined table in a subquery."
                raise DefinitionError(error.message, hint=hint) from error
            raise (error.__cause__ or error) from None
    return report


def _document(connection: Connection, select: str, file: str, target: Target) -> Document:
    """Return the definition that the walk of both sides needs."""
    from syncer.lineage import catalog, routes  # noqa: PLC0415 - they import sqlglot, which is slow to load

    try:
        cursor = connection.execute(f"{_PREFIX}{select}\n) AS d LIMIT 0", prepare=True)
    except psycopg.errors.InsufficientPrivilege:
        raise
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError) as error:
        raise catalog.refused(connection, error, select, file, prefix=_PREFIX) from error
    columns = cursor.description or ()
    types = {column.name: column.type_code for column in columns}
    if len(types) < len(columns):
        raise DefinitionError(f"{file} returns two columns of one name", hint="Name each column differently, with AS.")
    catalog.require_id(file, types)
    number, result = list(types).index("_id"), cursor.pgresult
    assert result is not None  # of a query that returns rows
    origin = result.ftable(number), result.ftablecol(number)
    root, key = connection.execute(_ORIGIN, origin).fetchone() or (None, None)
    if root is None or frozenset({key}) not in routes.keys_and_types(connection, [root])[0][root]:
        root = key = None
    dependencies = Dependencies(
        canonical_select=f"{select}\n",
        id_type=str(value(connection, "SELECT format_type($1, -1)", (types["_id"],))),
        fields=tuple(name for name in types if name not in {"_id", "_routing"}),
        has_routing="_routing" in types,
        root=root,
        root_key=key,
        tables={},
        views=(),
        shapes={},
    )
    alias = target.index_name
    document = Document(name=file, revision=0, index=alias, index_body={}, dependencies=dependencies, target=target)
    spans = IdRange(), queries.next_range(connection, document, None, rows=compare.PAGE)
    (whole_cost, documents), (page_cost, _) = (queries.estimate(connection, document, span) for span in spans)
    # The condition on a range does not reach into a CTE or a window: each range may cost as much as all.
    if page_cost * documents / compare.PAGE > _WHOLE_COSTS_MORE * whole_cost:
        dependencies = replace(dependencies, root=None, root_key=None)
    return replace(document, dependencies=dependencies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Auditor(Settler):
    """Compares by the mappings of the physical indices, and settles without knowing what is in flight."""

    report: AuditReport
    meanings: dict[str, Meaning]

    def ids_of_index(self) -> Iterator[list[str]]:
        """Return the ids of the index in chunks, as a point in time shows them that is opened for the first one."""
        return self.index.holdings.ids(self.document.target, page=compare.PAGE)

    def find(self, ids: Sequence[str], *, are_suspects: bool = False) -> list[Copy]:
        """Return all copies of these documents, as searches find them; nothing is refreshed: see `settle`."""
        meanings = self.meanings.values()
        # That the server reads each date takes half as long again, so this is left to what is suspect.
        dates = set().union(*(meaning.dates if are_suspects else meaning.to_render for meaning in meanings))
        dates = dates.difference(*(meaning.unrenderable for meaning in meanings))
        return self.index.holdings.find(self.document.target, ids, dates=sorted(dates))

    def differing(self, expected: Mapping[str, Row], copies: Collection[Copy]) -> Iterator[Drift]:
        """Yield how copies differ from the rows with their ids, in the fields that the SELECT returns."""
        self.report.has_common_id |= any(copy.id in expected for copy in copies)
        if not self.document.dependencies.has_routing:
            copies = [msgspec.structs.replace(copy, routing=None) if copy.routing else copy for copy in copies]
        return diff.compare(expected, copies, values=self.values, compared=self._compared)

    def settle(self, ids: Collection[str]) -> Settled:
        """Read documents that differ again, each time after the index was refreshed, and decide after the last time."""
        settled, suspects, readings = Settled(), ids, list[Mapping[str, Differing]]()
        while suspects and len(readings) < READINGS:
            time.sleep(self.settle_seconds)
            readings.append(suspects := self._compare(suspects))
        for id_, differing in sorted(readings[-1].items() if readings else ()):
            is_kept = differing.copies == readings[-2][id_].copies
            (settled.drifts if is_kept else settled.busy).append(differing.drift)
        return settled

    def _compared(self, row: Row, copy: Copy) -> Compared:
        """Compare by meaning the fields that differ as JSON."""
        names = self.document.dependencies.fields
        try:
            expected, indexed = _parsed(row.source), _parsed(copy.source)
            compared = _first_names(names)
            self.report.not_compared.update(name for name in indexed if name.partition(".")[0] not in compared)
            unequal = [name for name in names if _normal(expected.get(name)) != _normal(indexed.get(name))]
            if not unequal:
                return [], None
            # An index that was made meanwhile is most like the last one.
            reader = self.meanings.get(copy.index) or self.meanings[max(self.meanings)]
            rendered = {path: meaning.rendered(copy.fields, path) for path in reader.dates}
            row_meaning = reader.of({name: expected.get(name) for name in unequal}) or {}
            copy_meaning = reader.of(indexed, rendered=rendered) or {}
            within = tuple(f"{name}." for name in unequal)
            paths = [path for path in copy_meaning if path in unequal or path.startswith(within)]
            return diff.first_differences(row_meaning, {path: copy_meaning[path] for path in paths})
        except diff.UNPARSED:
            return [Difference(path=diff.TOO_DEEP)], None


def _first_names(paths: Iterable[str]) -> set[str]:
    return {path.partition(".")[0] for path in paths}


def _parsed(source: bytes) -> dict[str, Any]:
    try:
        return dict(_JSON.decode(source))
    except (msgspec.DecodeError, RecursionError):  # half a surrogate pair, or nested deep
        return dict(json.loads(source, parse_float=Decimal))


def _normal(field: Any) -> Any:
    """Return what is equal for equal JSON, and not for true and 1."""
    return field if field is None or isinstance(field, str) else _NORMAL.encode(field)
