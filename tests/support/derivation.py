"""The judge of a derivation: the plain SELECT, run before and after, says which documents a transaction changed.

A judge works in one database without Kafka or Elasticsearch. The real triggers write the outbox, and what was derived
from it is asked; what lies between the two is shortened.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from syncer.base import migrations
from syncer.base.model import Change, Operation, dump_images, watched_digest
from syncer.base.postgres import Connection, names_as_written
from syncer.capture import install
from syncer.capture.triggers import Capture
from syncer.documents import analyze
from syncer.documents.definition import Definition
from syncer.documents.registry import Dependencies

Contents = Mapping[str, Sequence[str]]
"""For each id, the rows that the SELECT returns for it, as text."""

_TABLES = """
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'syncer')
  AND EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary)
"""
_COLUMNS = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped"
_OUTBOX = "DELETE FROM syncer.outbox RETURNING id, relation, operation::text, old::text, new::text"


@dataclass
class Judge:
    """One connection to a database that is captured whole.

    A row's images are reduced to what the definition at hand takes from them, and an update that it does not watch
    is left out: as if it were the only definition.
    """

    connection: Connection
    select: str = ""
    dependencies: Dependencies | None = None
    seen: set[str] = field(default_factory=set)
    """The ids that the SELECT has ever returned."""
    judges_places: bool = False
    """Whether it judges which documents there are, and their ``_routing``, by the changes that may move them."""

    def set_up(self) -> None:
        """Capture every table that has a primary key."""
        migrations.migrate(self.connection)
        for (relation,) in self.connection.execute(_TABLES).fetchall():
            every = frozenset(row[0] for row in self.connection.execute(_COLUMNS, (relation,)))
            install.install(self.connection, Capture(relation=relation, watched=frozenset({every}), routing=every))

    def derive(self, select: str, affects: Mapping[str, str] | None = None) -> Dependencies:
        """Derive, as if this were the only definition.

        Raises:
            DefinitionError: As `analyze.analyse`.
        """
        asked = Definition(
            name="d", index="d", select=select, index_body={}, affects=dict(affects or {}), folder=Path("d")
        )
        self.select, self.dependencies = select, analyze.analyse(self.connection, asked)
        self.connection.execute("DELETE FROM syncer.outbox")
        return self.dependencies

    @property
    def tables(self) -> list[str]:
        """The tables that the SELECT reads, those in public without their schema."""
        assert self.dependencies is not None
        return [relation.removeprefix("public.") for relation in self.dependencies.tables]

    def contents(self) -> Contents:
        """What the SELECT says now."""
        ids_by_table: dict[str, list[str]] = {}
        with names_as_written(self.connection):
            shown = "coalesce(judged._routing, '')" if self.judges_places else "judged"
            query = f"SELECT judged._id::text, {shown}::text FROM (\n{self.select}\n) AS judged"
            rows = self.connection.execute(query.encode())
        for id_, row in rows:
            if id_ is not None:
                ids_by_table.setdefault(id_, []).append(row)
        self.seen |= ids_by_table.keys()
        return {id_: sorted({*rows} if self.judges_places else rows) for id_, rows in ids_by_table.items()}

    def write(self, statements: str) -> None:
        """Execute what is no change of a row, as an application does."""
        with names_as_written(self.connection):
            self.connection.execute(statements.encode())

    def run(self, transaction: Sequence[str]) -> list[Change]:
        """Run a transaction as an application does; what it leaves in the outbox. Nothing if a constraint is broken."""
        try:
            with names_as_written(self.connection):
                for statement in transaction:
                    self.connection.execute(statement)
        except psycopg.errors.IntegrityError:
            return []
        return list(self._changes())

    def named(self, changes: Sequence[Change]) -> set[str]:
        """The documents that these changes are said to touch, asked now, as `syncer.documents.affected` asks.

        After a TRUNCATE, these are all.
        """
        assert self.dependencies is not None
        ids: set[str] = set()
        for relation, use in self.dependencies.tables.items():
            table_changes = [change for change in changes if change.relation == relation]
            if any(not change.images for change in table_changes):
                return set(self.seen)
            for lead in use.leads:
                followed = [change for change in table_changes if lead.follows(change)]
                followed = [change for change in followed if use.moves(change) or not self.judges_places]
                images = [image for change in followed for image in change.images]
                if lead.id_column:
                    ids |= {id_ for image in images if (id_ := image[lead.id_column]) is not None}
                elif images:
                    ids |= {row[0] for row in self.connection.execute(lead.query, (dump_images(images),))}
        return ids

    def words(self, missing: set[str], transactions: Sequence[Sequence[str]], when: str) -> str:
        """A missed document, for a reader."""
        assert self.dependencies is not None
        executed = "\n".join("; ".join(transaction) for transaction in transactions)
        uses = self.dependencies.tables.values()
        queries = "\n".join(f"  {use.relation}: {lead}" for use in uses for lead in use.leads)
        return f"missed {sorted(missing)}, {when}\n{self.select}\n{executed}\n{queries}"

    def require_nothing_missed(self, transactions: Sequence[Sequence[str]], delays: Random) -> None:
        """Commit these transactions, and ask about every change at once, after the last, and at some point between.

        The claim: a document that a transaction changed is named by a change of that transaction or of a later one,
        each asked at any point after its own commit. So whoever composes all that is named, when it is named, ends
        with what the SELECT says in the end.
        """
        contents, changes, differ = self.contents(), list[list[Change]](), list[set[str]]()
        due: dict[tuple[int, int], list[Change]] = defaultdict(list)  # by when it is asked, and whose it is
        between = [set[str]() for _ in transactions]
        for number, transaction in enumerate(transactions):
            changes.append(self.run(transaction))
            contents_now = self.contents()
            differ.append(
                {id_ for id_ in contents.keys() | contents_now.keys() if contents.get(id_) != contents_now.get(id_)}
            )
            contents = contents_now
            missing = differ[number] - self.named(changes[number])
            assert not missing, self.words(missing, transactions[: number + 1], "asked at once")
            for change in changes[number]:
                due[delays.randint(number, len(transactions)), number].append(change)
            for of in range(number + 1):
                between[of] |= self.named(due[number, of])
        between = [named | self.named(due[len(transactions), of]) for of, named in enumerate(between)]
        asked = {"asked after the last": [*map(self.named, changes)], "each asked some time later": between}
        for when, named in asked.items():
            from_here = set[str]()
            for number in reversed(range(len(transactions))):
                from_here |= named[number]
                missing = differ[number] - from_here
                assert not missing, self.words(missing, transactions, when)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """What is done inside is taken back."""
        with self.connection.transaction(force_rollback=True):
            yield

    def _changes(self) -> Iterator[Change]:
        assert self.dependencies is not None
        for id_, relation, operation, *texts in self.connection.execute(_OUTBOX).fetchall():
            use = self.dependencies.tables.get(relation)
            if use is None:
                continue
            old, new = (None if text is None else _parsed(text) for text in texts)
            same = {name for name in old or () if old and new and repr(old[name]) == repr(new[name])}
            watched = {lead.watched for lead in use.leads} | {use.places or frozenset()}
            untouched = frozenset(watched_digest(columns) for columns in watched if columns <= same)
            if len(untouched) < len(watched) or not (old and new):
                images = tuple({name: image[name] for name in use.routing} for image in (old, new) if image is not None)
                yield Change(
                    id=id_,
                    changed_at=0,
                    relation=relation,
                    operation=Operation(operation),
                    images=images,
                    untouched=untouched,
                )


def _parsed(image: str) -> dict[str, Any]:
    columns: dict[str, Any] = json.loads(image, parse_float=Decimal)
    return columns
