"""Predicates: part of a document's rows, selected by an SQL condition on the columns of its root table.

An operator writes the condition. Postgres runs it with syncer's own privileges, and only as a single expression. Its
names are resolved once, by the search_path of the role that creates the job.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from syncer.base.error_policy import Action, decide
from syncer.base.errors import DefinitionError, JobError
from syncer.base.postgres import Connection, names_as_written
from syncer.documents.registry import Document
from syncer.lineage import catalog

# The condition is on lines of its own, so that a comment at its end cannot hide the closing bracket.
_MATCHING = "SELECT {key} AS _id FROM {root} WHERE (\n{condition}\n)"
_ALWAYS = "true"
# Only a single expression is valid here. The job itself does not use CASE, because it would rule out an index.
_CHECK = "SELECT CASE WHEN (\n{condition}\n) THEN true END FROM {root} LIMIT 0"


def matching(document: Document, condition: str) -> sql.Composed:
    """Return the query for the ids of the root's rows that meet a condition."""
    root, key = document.dependencies.root, document.dependencies.root_key
    if root is None or key is None:
        raise JobError(
            f"A condition needs a table whose rows are the documents, and {document.name} has none: its _id is not a "
            "unique column of a table",
            hint="Name the ids instead: pass them on standard input.",
        )
    return sql.SQL(_MATCHING).format(
        key=sql.Identifier(key),
        root=sql.SQL(root),  # quoted by Postgres
        condition=sql.SQL(condition),  # written by the operator
    )


def canonical(connection: Connection, document: Document, condition: str) -> str:
    """Return the condition as Postgres deparses it, which does not depend on a search_path. No row is read.

    Raises:
        JobError: Postgres refuses it; the message quotes Postgres.
        psycopg.Error: The server is unavailable.
    """
    every_row, some_rows = (matching(document, condition_).as_string(connection) for condition_ in (_ALWAYS, condition))
    try:
        with names_as_written(connection):
            # A prepared statement is a single statement; without arguments it can have no parameters.
            check = sql.SQL(_CHECK).format(
                root=sql.SQL(document.dependencies.root or ""),  # quoted by Postgres
                condition=sql.SQL(condition),  # written by the operator
            )
            connection.execute(check, prepare=True)
        beginning = catalog.canonical(connection, every_row, "The condition").removesuffix(_ALWAYS)
        return catalog.canonical(connection, some_rows, "The condition").removeprefix(beginning)
    except DefinitionError as error:
        if isinstance(error.__cause__, psycopg.Error):
            raise refused(document, error.__cause__) from error
        raise JobError(error.message, hint=error.hint) from error
    except psycopg.Error as error:
        has_parameter = isinstance(error, psycopg.errors.ProtocolViolation)
        if decide(error) is Action.RETRY and not has_parameter:
            raise
        raise refused(document, error) from error


def refused(document: Document, error: psycopg.Error) -> JobError:
    """Return the error for a condition that Postgres cannot evaluate."""
    reason = (error.diag.message_primary or str(error)).strip()
    if isinstance(error, psycopg.errors.ProtocolViolation):
        reason = "it has a parameter"
    return JobError(
        f"Postgres refuses the condition: {reason}",
        hint=f"It is what comes after WHERE, on columns of {document.dependencies.root}, the root of {document.name}.\n"
        "Is every bracket and every quote closed?",
    )
