"""What a model of the guide is made of: documents, a few rows, questions with their answers, and changes between them.

A model is data. The demo shows it and the tests play it, so what is shown is what is tested.
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
"""A search request, or its response, as Elasticsearch's API has them."""

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How a response is read as a table.

    Args:
        columns: The table's headings.
        rows: Its rows, from a response.
    """

    columns: Row
    rows: Callable[[Body], Sequence[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question.

    Args:
        question: In words.
        document: Which document's index is searched.
        body: The request; or how to make it of the response to the question before.
        read: How to read the response.
        answer: What the response must say.
    """

    question: str
    document: str
    body: Body | Callable[[Body], Body]
    read: Reader
    answer: tuple[Row, ...]

    def request(self, before: Body) -> Body:
        """The request, given the response to the question before."""
        return self.body(before) if callable(self.body) else self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What the application does.

    Args:
        title: In words.
        statements: SQL; each is a transaction of its own, and all of them run at once.
    """

    title: str
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One way to model a relationship.

    Args:
        name: What it is called on the command line.
        question: What it answers.
        price: What it costs, in one sentence.
        choice: When to choose it, in one sentence.
        documents: The documents that it needs, of config/documents.
        schema: Which of the application's schemas it needs, of `SCHEMAS`.
        rows: The guide's rows, as SQL.
        steps: Questions, and changes between them.
        encore: One more change, as SQL, that the last question shows.
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
    """The tables of an application.

    Args:
        file: Where they are created.
        tables: Their names, those that refer to others first.
    """

    file: str
    tables: tuple[str, ...]

    @property
    def creation(self) -> str:
        """The SQL that creates them."""
        return files("syncer.demo").joinpath(self.file).read_text()

    @property
    def emptying(self) -> str:
        """The SQL that removes every row."""
        return "; ".join(f"DELETE FROM {table}" for table in self.tables)  # noqa: S608 - names of our own


SCHEMAS = {
    "blog": Schema(file="blog.sql", tables=("comments", "posts", "users")),
    "filesystem": Schema(file="filesystem.sql", tables=("files", "directories")),
}


def commit(dsn: str, write: Write) -> None:
    """Run the statements, all at once, each on a connection of its own; return when all are committed.

    Raises:
        psycopg.Error: One of them failed; the others may have been committed.
    """
    with ThreadPoolExecutor(len(write.statements)) as pool:
        list(pool.map(lambda statement: execute(dsn, statement), write.statements))


def execute(dsn: str, statement: str) -> None:
    """Run SQL in one transaction, as an application that knows nothing of syncer."""
    with psycopg.connect(dsn, application_name="application") as connection:
        connection.execute(statement)


def search(client: Elasticsearch, index: str, request: Body) -> Body:
    """Ask, with everything visible that was written so far."""
    client.indices.refresh(index=index)
    return dict(client.search(index=index, **request).body)


def must(*clauses: Body) -> Body:
    """A query in which every clause must match."""
    return {"bool": {"must": list(clauses)}} if len(clauses) > 1 else clauses[0]


def hits(*columns: str) -> Reader:
    """The best documents: their ``_id``, ``_routing`` or fields, such as ``user.name``."""
    return Reader(columns=columns, rows=lambda body: [_cells(hit, columns) for hit in body["hits"]["hits"]])


def total(noun: str) -> Reader:
    """How many documents there are."""
    return Reader(columns=(noun,), rows=lambda body: [(f"{body['hits']['total']['value']:,}",)])


def _cells(hit: Body, columns: Row) -> Row:
    return tuple(str(hit[one]) if one.startswith("_") else str(_field(hit["_source"], one)) for one in columns)


def _field(source: Body, path: str) -> Any:
    value: Any = source
    for name in path.split("."):
        value = value[name]
    return value
