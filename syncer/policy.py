"""What to do about an error: one table, for every stage.

    RETRY          the servers will be well again: wait, with backoff, and do the same once more; nothing is skipped
    PARK           this one row's document is at fault: it becomes a dead letter, the others go on
    HALT_DOCUMENT  a definition, its tables or its index are at fault: that document halts and says what to do, the
                   others go on; see `syncer.halting`
    HALT           the set-up is at fault: the daemon ends and says what to do; nothing is lost

Where an error was met decides with it. What a document's own SQL and its own index say is met inside `at_work_for`:

    met in                 a document's work                          anything else of syncer's
    Postgres               away, deadlock, cancelled: RETRY           the same: RETRY
                           data, where one row is found out: PARK     data: PARK
                           data, where it is not: HALT_DOCUMENT
                           column, table, type, privilege, row-level  schema syncer, privilege: HALT
                           security, all else: HALT_DOCUMENT
    Elasticsearch          away, 408, 429, 5xx: RETRY                 the same: RETRY
                           login, or a request that is not allowed at all (401, 403): HALT
                           400, 404 and all else: HALT_DOCUMENT       all else: HALT
      one item of a bulk   400, 413: PARK
                           closed index, 403, 404: HALT_DOCUMENT
    UnavailableError       RETRY                                      RETRY
    Kafka                                                             topic, offsets, rights: HALT; all else: RETRY
    ComposeError, IndexingError
                           HALT_DOCUMENT                              HALT
    other errors of ours   HALT                                       HALT
    what nobody foresaw    HALT                                       HALT

The same module says an error to a person: what happened, and the hint.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import elasticsearch
import psycopg
from confluent_kafka import KafkaError, KafkaException
from psycopg import errors as pg

from syncer.errors import (
    ComposeError,
    DocumentError,
    IndexingError,
    SourceError,
    SyncerError,
    TopicError,
    UnavailableError,
)


class Action(Enum):
    """What to do about an error."""

    RETRY = "retry"
    PARK = "park"
    HALT_DOCUMENT = "halt the document"
    HALT = "halt"


# The first class that fits decides; subclasses stand before their bases.
_POSTGRES: tuple[tuple[type[psycopg.Error], Action], ...] = (
    (pg.SerializationFailure, Action.RETRY),
    (pg.DeadlockDetected, Action.RETRY),
    (pg.QueryCanceled, Action.RETRY),
    (pg.LockNotAvailable, Action.RETRY),
    (pg.ObjectInUse, Action.RETRY),
    (pg.IdleInTransactionSessionTimeout, Action.RETRY),
    (pg.TransactionTimeout, Action.RETRY),
    (pg.ReadOnlySqlTransaction, Action.RETRY),  # a standby that is about to be promoted
    (pg.RaiseException, Action.PARK),
    (pg.ProgramLimitExceeded, Action.PARK),  # a value that is too large for what is done with it
    (psycopg.DataError, Action.PARK),
    (psycopg.IntegrityError, Action.PARK),
    (psycopg.OperationalError, Action.RETRY),
    (psycopg.InterfaceError, Action.RETRY),
)

_RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_PARKED_STATUSES = frozenset({400, 413})
_CLOSED = "index_closed_exception"  # with status 400, and no fault of a document

# What can be one document's own fault, if it was met in that document's work.
_OF_DOCUMENT = (psycopg.Error, elasticsearch.ApiError, ComposeError, IndexingError)
_OF_NOBODY = (
    elasticsearch.UnsupportedProductError,
    elasticsearch.AuthenticationException,
    elasticsearch.AuthorizationException,
)

_HALTED_KAFKA = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's local codes are spelled so
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
        KafkaError._INVALID_ARG,  # noqa: SLF001
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)


def decide(error: BaseException) -> Action:
    """What to do about an error that a stage met."""
    if isinstance(error, DocumentError):
        return Action.HALT_DOCUMENT
    if isinstance(error, UnavailableError):
        return Action.RETRY
    if isinstance(error, psycopg.Error):
        return next((action for kind, action in _POSTGRES if isinstance(error, kind)), Action.HALT)
    if isinstance(error, elasticsearch.ApiError | elasticsearch.TransportError):
        return _decide_elasticsearch(error)
    if isinstance(error, KafkaException):
        return Action.HALT if error.args[0].code() in _HALTED_KAFKA else Action.RETRY
    return Action.HALT


def _decide_elasticsearch(error: elasticsearch.ApiError | elasticsearch.TransportError) -> Action:
    if isinstance(error, elasticsearch.UnsupportedProductError):
        return Action.HALT
    if isinstance(error, elasticsearch.TransportError):
        return Action.RETRY
    return Action.RETRY if error.status_code in _RETRIED_STATUSES else Action.HALT


def decide_item(status: int, kind: str) -> Action:
    """What to do about one document that a bulk request did not write.

    Args:
        status: The item's HTTP status.
        kind: Elasticsearch's name of the error.
    """
    if status in _RETRIED_STATUSES:
        return Action.RETRY
    return Action.PARK if status in _PARKED_STATUSES and kind != _CLOSED else Action.HALT_DOCUMENT


@contextmanager
def at_work_for(document: str, generation: int, *, parks: bool = False) -> Iterator[None]:
    """Around a document's own SQL, and requests to its own index: what is its fault becomes a `DocumentError`.

    Args:
        document: Whose work it is.
        generation: The generation that was found in force.
        parks: Whether the caller finds out which row is at fault; PARK is left to it then.

    Raises:
        DocumentError: What makes the document halt.
        Exception: Any other error, as it is.
    """
    try:
        yield
    except _OF_DOCUMENT as error:
        action = decide(error)
        if action is Action.RETRY or isinstance(error, _OF_NOBODY) or (parks and action is Action.PARK):
            raise
        said = _explain_in_work(error, document)
        raise DocumentError(said.message, hint=said.hint, document=document, generation=generation) from error


@dataclass(slots=True)
class Backoff:
    """Growing pauses with full jitter.

    Args:
        first_seconds: The longest that the first pause can be.
        longest_seconds: The longest that any can be.
    """

    first_seconds: float = 0.1
    longest_seconds: float = 15
    _attempts: int = 0

    def next_seconds(self) -> float:
        """How long to pause now: at least half of the limit, which doubles each time."""
        limit: float = min(self.longest_seconds, self.first_seconds * 2 ** min(self._attempts, 30))
        self._attempts += 1
        return limit * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Begin again with the first pause."""
        self._attempts = 0


def explain(error: BaseException) -> SyncerError | None:
    """An error in words for a person; None if it is none of those that are expected."""
    if isinstance(error, SyncerError):
        return error
    if isinstance(error, psycopg.Error):
        return _explain_postgres(error)
    if isinstance(error, elasticsearch.ApiError | elasticsearch.TransportError):
        return _explain_elasticsearch(error)
    if isinstance(error, KafkaException):
        return _explain_kafka(error.args[0])
    return None


def _explain_in_work(error: Exception, document: str) -> SyncerError:
    """What makes a document halt, in words."""
    if isinstance(error, psycopg.Error):
        return _explain_select(error, document)
    if isinstance(error, elasticsearch.ApiError):
        return explain_refusal(document, _reason(error))
    said = explain(error)
    assert said is not None  # noqa: S101 - each of those errors has words
    return said


def explain_refusal(document: str, reason: str) -> IndexingError:
    """An index that takes no documents, in words."""
    return IndexingError(
        f"The index of {document} is gone or refuses: {reason}",
        hint="If it was deleted, `syncer apply` makes it again. If it is closed, open it; if it is blocked\n"
        "(index.blocks.*), lift the block; if the role lacks a privilege, grant it. Then run: syncer apply",
    )


def _explain_select(error: psycopg.Error, document: str) -> SyncerError:
    message = (error.diag.message_primary or str(error)).strip()
    if isinstance(error, pg.InsufficientPrivilege):
        return SourceError(
            f"Postgres does not let syncer read all that {document} shows: {message}",
            hint="The role of postgres.dsn needs SELECT on every table of it and, where row-level security is on,\n"
            "to own the table or to see every row (ALTER ROLE … BYPASSRLS). Then run: syncer apply",
        )
    return ComposeError(
        f"The SELECT of {document} no longer fits the database: {message}",
        hint="Mend the tables, select.sql or its affects queries. Then run: syncer apply",
    )


def _explain_postgres(error: psycopg.Error) -> SyncerError:
    message = (error.diag.message_primary or str(error)).strip()
    if isinstance(error, pg.InsufficientPrivilege):
        return SourceError(
            f"Postgres refuses: {message}",
            hint="The role of postgres.dsn lacks a privilege. `syncer migrate` and `syncer apply` need one that may\n"
            "create schemas and owns the tables; `syncer run` needs SELECT on the tables, BYPASSRLS where row-level\n"
            "security is on, and all of schema syncer.",
        )
    if isinstance(error, pg.UndefinedTable | pg.InvalidSchemaName | pg.UndefinedFunction) and "syncer" in message:
        return SourceError(f"The database lacks the syncer schema: {message}", hint="Run: syncer migrate")
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None and "FATAL:" in message:
        return SourceError(
            f"Postgres refuses the connection: {message.partition('FATAL:')[2].strip()}",
            hint="Check the user, the password and the database of SYNCER_POSTGRES_DSN.",
        )
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return SourceError(
            f"Postgres cannot be reached: {message}",
            hint="Check SYNCER_POSTGRES_DSN, and that the server is up.",
        )
    if isinstance(error, pg.UndefinedTable | pg.UndefinedColumn):
        return ComposeError(
            f"The SELECT no longer fits the database: {message}", hint="Mend select.sql and run: syncer apply"
        )
    return SourceError(f"Postgres says: {message}", hint=error.diag.message_hint or "")


def _explain_elasticsearch(error: elasticsearch.ApiError | elasticsearch.TransportError) -> SyncerError:
    if isinstance(error, elasticsearch.UnsupportedProductError):
        return IndexingError(
            "The server at elasticsearch.url is not Elasticsearch",
            hint="OpenSearch and other relatives are not supported. Check SYNCER_ELASTICSEARCH_URL.",
        )
    if isinstance(error, elasticsearch.TransportError):
        return IndexingError(
            f"Elasticsearch cannot be reached: {error.message}",
            hint="Check SYNCER_ELASTICSEARCH_URL (http or https), and that the server is up.",
        )
    if isinstance(error, elasticsearch.AuthenticationException | elasticsearch.AuthorizationException):
        return IndexingError(
            f"Elasticsearch refuses the login or a privilege: {_reason(error)}",
            hint="Set SYNCER_ELASTICSEARCH_API_KEY, or _USERNAME and _PASSWORD, of a role that may manage and write "
            "the indices of the documents and syncer-state.",
        )
    if isinstance(error, elasticsearch.NotFoundError):
        return IndexingError(
            f"An index of syncer's is gone: {_reason(error)}",
            hint="Was it deleted by hand? `syncer verify` says what is missing, `syncer apply` makes it again.",
        )
    return IndexingError(f"Elasticsearch answers {error.status_code}: {_reason(error)}")


def _reason(error: elasticsearch.ApiError) -> str:
    if isinstance(error.body, dict) and isinstance(error.body.get("error"), dict):
        return str(error.body["error"].get("reason", error.message))
    return str(error.message)


def _explain_kafka(error: KafkaError) -> SyncerError:
    if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):  # noqa: SLF001
        return TopicError(f"Kafka has no such topic: {error.str()}", hint="Run: syncer apply, which creates it.")
    if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
        return TopicError(
            f"Changes are gone from the topic before they were read: {error.str()}",
            hint="The topic's retention was too short for the time that syncer was down. Raise retention.ms,\n"
            "reset the consumer group's offsets to the earliest, and run `syncer backfill` for each document.",
        )
    if error.code() == KafkaError._INVALID_ARG:  # noqa: SLF001
        return TopicError(
            f"Kafka's client says: {error.str()}", hint="Check kafka.properties: librdkafka's own names and values."
        )
    return TopicError(
        f"Kafka says: {error.str()}", hint="Check SYNCER_KAFKA_BOOTSTRAP_SERVERS, and that the broker is up."
    )
