"""The parts of a guide's model: documents, a few rows, questions with their answers, and changes between them.

A model is data. The demo shows it and the tests run it, so that the demo shows what is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import psycopg
from elasticsearch import Elasticsearch

Body = dict[str, Any]
"""A search request or response in Elasticsearch's API."""

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReader:
    """Converts a response into the rows of a table with these columns."""

    columns: Row
    rows: Callable[[Body], Sequence[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question with its answer.

    Args:
        question: In words.
        document: The document whose index is searched.
        body: The request, or a function that builds it from the response to the previous question.
        read: Converts the response into rows.
        answer: The expected rows.
    """

    question: str
    document: str
    body: Body | Callable[[Body], Body]
    read: TableReader
    answer: tuple[Row, ...]

    def request(self, before: Body) -> Body:
        """Return the request, given the response to the previous question."""
        return self.body(before) if callable(self.body) else self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A change made by the application: SQL statements that run concurrently, each in a transaction of its own."""

    title: str
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideModel:
    """One way to model a relationship.

    Args:
        name: Its name on the command line.
        question: What it answers.
        price: What it costs, in one sentence.
        choice: When to choose it, in one sentence.
        documents: Its documents in config/documents.
        schema: Its schema in `SCHEMAS`.
        rows: The guide's rows, as SQL.
        steps: Questions, and changes between them.
        encore: One more change, as SQL, that shows in the last question.
    """

    name: str
    question: str
    price: str
    choice: str
    documents: tuple[str, ...]
    schema: str
    rows: str
    steps: tuple[Ask | Write, ...]
    encore: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The tables of an application, referencing tables first, and the file that creates them."""

    file: str
    tables: tuple[str, ...]

    @property
    def creation(self) -> str:
        """The SQL that creates the tables."""
        return files("syncer.demo").joinpath(self.file).read_text()

    @property
    def emptying(self) -> str:
        """The SQL that deletes every row."""
        return "; ".join(f"DELETE FROM {table}" for table in self.tables)  # noqa: S608 - names of our own


SCHEMAS = {
    "blog": Schema(file="blog.sql", tables=("comments", "posts", "users")),
    "filesystem": Schema(file="filesystem.sql", tables=("files", "directories")),
}


def commit(dsn: str, *statements: str) -> list[str]:
    """Run SQL concurrently, each on a connection of its own; when all is committed, return the transactions' tokens.

    Raises:
        psycopg.Error: A statement failed; the others may have been committed.
    """

    def run(statement: str) -> str:
        with psycopg.connect(dsn, application_name="application") as connection:
            connection.execute(statement)
            return str(connection.execute("SELECT syncer.token()").fetchall()[0][0])

    with ThreadPoolExecutor(len(statements)) as pool:
        return list(pool.map(run, statements))


def execute(dsn: str, statement: str) -> None:
    """Run SQL in one transaction, like an application that does not know syncer."""
    with psycopg.connect(dsn, application_name="application") as connection:
        connection.execute(statement)


def search(client: Elasticsearch, index: str, request: Body) -> Body:
    """Refresh the index and search."""
    client.indices.refresh(index=index)
    return dict(client.search(index=index, **request).body)


def must(*clauses: Body) -> Body:
    """Return a query in which every clause must match."""
    return {"bool": {"must": list(clauses)}} if len(clauses) > 1 else clauses[0]


def hits(*columns: str) -> TableReader:
    """Return a reader for the best hits: their ``_id``, ``_routing`` or fields, such as ``user.name``."""
    return TableReader(columns=columns, rows=lambda body: [_cells(hit, columns) for hit in body["hits"]["hits"]])


def total(noun: str) -> TableReader:
    """Return a reader for the number of hits."""
    return TableReader(columns=(noun,), rows=lambda body: [(f"{body['hits']['total']['value']:,}",)])


def _cells(hit: Body, columns: Row) -> Row:
    return tuple(str(hit[one]) if one.startswith("_") else str(_field(hit["_source"], one)) for one in columns)


def _field(source: Body, path: str) -> Any:
    value: Any = source
    for name in path.split("."):
        value = value[name]
    return value
