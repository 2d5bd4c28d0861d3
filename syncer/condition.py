"""Condition: a part of a document, as a condition on the columns of its root.

It is SQL that a person writes; Postgres runs it with syncer's own privileges, and only ever as one expression.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from syncer.errors import JobError
from syncer.policy import Action, decide
from syncer.postgres import Connection
from syncer.store import Document

# The condition stands on lines of its own, so that a comment at its end hides nothing of ours.
_MATCHING = "SELECT {key} AS _id FROM {root} WHERE (\n{condition}\n)"
_NONE = " LIMIT 0"
# So it is one expression, or Postgres does not take it. Not used for the work, since no index would be.
_CHECK = "SELECT CASE WHEN (\n{condition}\n) THEN true END FROM {root} LIMIT 0"


def matching(document: Document, condition: str) -> sql.Composed:
    """The query for the ids of the root's rows that meet a condition.

    Raises:
        JobError: The document has no root.
    """
    root, key = document.dependencies.root, document.dependencies.root_key
    if root is None or key is None:
        raise JobError(
            f"A condition needs a table whose rows are the documents, and {document.name} has none: its _id is not a "
            "unique column of a table",
            hint="Name the ids instead: they can be given on standard input.",
        )
    return sql.SQL(_MATCHING).format(
        key=sql.Identifier(key),
        root=sql.SQL(root),  # quoted by Postgres
        condition=sql.SQL(condition),  # written by who runs syncer
    )


def require_valid(connection: Connection, document: Document, condition: str) -> None:
    """Have Postgres look at a condition without reading a row.

    Raises:
        JobError: It is refused, with Postgres's words.
        psycopg.Error: The server is away.
    """
    try:
        with connection.transaction():
            # As a prepared statement it can be no more than one, and has no parameters.
            asked = matching(document, condition)
            check = sql.SQL(_CHECK).format(
                root=sql.SQL(document.dependencies.root or ""),  # quoted by Postgres
                condition=sql.SQL(condition),  # written by who runs syncer
            )
            connection.execute(check, prepare=True)
            connection.execute(asked + sql.SQL(_NONE), prepare=True)
    except psycopg.errors.ProtocolViolation as error:
        raise refused(document, "it has a parameter") from error
    except psycopg.Error as error:
        if decide(error) is Action.RETRY:
            raise
        raise refused(document, words(error)) from error


def words(error: psycopg.Error) -> str:
    """What Postgres says."""
    return (error.diag.message_primary or str(error)).strip()


def refused(document: Document, said: str) -> JobError:
    """The error for a condition that Postgres cannot evaluate."""
    return JobError(
        f"Postgres does not take the condition: {said}",
        hint=f"It is what comes after WHERE, on columns of {document.dependencies.root}, the root of {document.name}.\n"
        "Is every bracket and every quote closed?",
    )
