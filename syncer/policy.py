"""What to do about an error: one table, for every stage.

    RETRY          the servers will be well again: wait, with backoff, and do the same once more; nothing is skipped
    PARK           this one row's document is at fault: it becomes a dead letter, the others go on
    HALT_DOCUMENT  a definition, its tables or its index are at fault: that document halts and says what to do, the
                   others go on; see `syncer.halting`
    LEAVE          this index takes nothing for now, and has not for a while: its documents are left to a job, which
                   waits for it, and the others go on; see `syncer.unwell`
    HALT           the set-up is at fault: the daemon ends and says what to do; nothing is lost

Where an error was met decides with it. What a document's own SQL and its own index say is met inside `at_work_for`:

    met in                 a document's work                          anything else of syncer's
    Postgres               away, deadlock, cancelled: RETRY           the same: RETRY
                           data, where one row is found out: PARK     data: PARK
                           data, where it is not: HALT_DOCUMENT
                           column, table, type, privilege, row-level  schema syncer, privilege: HALT
                           security, all else: HALT_DOCUMENT
    Elasticsearch          away, 408, 429, 5xx: RETRY                 the same: RETRY
                           login or privilege (401, 403), not Elasticsearch's answer at all: RETRY
                           400, 404 and all else: HALT_DOCUMENT       all else: HALT
      one item of a bulk   400, 413: PARK; 408, 429, 5xx: RETRY
                           closed index, 403, 404: HALT_DOCUMENT
    UnavailableError, ReplicaError, RestoringError, ParkingError
                           RETRY                                      RETRY
    UnwellError    LEAVE                                              HALT
    Kafka                                                             rights, settings: HALT; all else: RETRY
    ComposeError, IndexingError
                           HALT_DOCUMENT                              HALT
    other errors of ours   HALT                                       HALT
    what nobody foresaw    HALT                                       HALT

Of Elasticsearch that is what a stage at work meets. It was Elasticsearch and knew the login when the stage began, for
`syncer.index.connect` asks, and whoever cannot begin says so and ends. So a login that is refused, or a page of HTML,
is something that somebody has changed since, and may change back: nothing is lost by waiting for it.

The same module says an error to a person: what happened, and the hint. ``docs/errors.md`` is the table, error by error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TypeGuard

import elasticsearch
import psycopg
from confluent_kafka import KafkaError, KafkaException
from psycopg import errors as pg

from syncer.errors import (
    ComposeError,
    DocumentError,
    IndexingError,
    ParkingError,
    ReplicaError,
    RestoringError,
    SourceError,
    SyncerError,
    TopicError,
    UnavailableError,
    UnwellError,
)


class Action(Enum):
    """What to do about an error."""

    RETRY = "retry"
    PARK = "park"
    HALT_DOCUMENT = "halt the document"
    LEAVE = "leave"
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
    (pg.SnapshotTooOld, Action.RETRY),
    # What a function that the SELECT calls makes of one row.
    (pg.RaiseException, Action.PARK),
    (pg.PlpgsqlError, Action.PARK),
    (pg.NoDataFound, Action.PARK),
    (pg.TooManyRows, Action.PARK),
    (pg.AssertFailure, Action.PARK),
    (pg.CaseNotFound, Action.PARK),
    (pg.CardinalityViolation, Action.PARK),
    (pg.SqlRoutineException, Action.PARK),
    (pg.ExternalRoutineException, Action.PARK),
    (pg.ExternalRoutineInvocationException, Action.PARK),
    # A value that is too large, or too deep, for what is done with it.
    (pg.ProgramLimitExceeded, Action.PARK),
    (pg.StatementTooComplex, Action.PARK),
    (pg.TooManyColumns, Action.HALT),
    (pg.TooManyArguments, Action.HALT),
    (psycopg.DataError, Action.PARK),
    (psycopg.IntegrityError, Action.PARK),
    (psycopg.OperationalError, Action.RETRY),
    (psycopg.InterfaceError, Action.RETRY),
)

_RETRIED_ITEMS = frozenset({408, 429, 500, 502, 503, 504})
_RETRIED_STATUSES = _RETRIED_ITEMS | {401, 403}
_PARKED_STATUSES = frozenset({400, 413})
_PRODUCT = "x-elastic-product"
CLUSTER_BLOCK = "cluster_block_exception"
_CLOSED = "index_closed_exception"  # with status 400, and no fault of a document

# What can be one document's own fault, if it was met in that document's work.
_OF_DOCUMENT = (psycopg.Error, elasticsearch.ApiError, ComposeError, IndexingError)

_TOO_LARGE_FOR_KAFKA = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
# Not among them: a topic or offsets that are gone. Whoever begins anew finds that out, and mends it: see `syncer.loss`.
_HALTED_KAFKA = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's local codes are spelled so
        KafkaError._INVALID_ARG,  # noqa: SLF001
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        *_TOO_LARGE_FOR_KAFKA,
    }
)


def decide(error: BaseException) -> Action:
    """What to do about an error that a stage met."""
    if isinstance(error, DocumentError | UnwellError):
        return Action.LEAVE if isinstance(error, UnwellError) else Action.HALT_DOCUMENT
    if isinstance(error, UnavailableError | ReplicaError | RestoringError | ParkingError):
        return Action.RETRY
    if isinstance(error, psycopg.Error):
        return _decide_postgres(error)
    if isinstance(error, elasticsearch.ApiError | elasticsearch.TransportError):
        return _decide_elasticsearch(error)
    if isinstance(error, KafkaException):
        return Action.HALT if error.args[0].code() in _HALTED_KAFKA else Action.RETRY
    return Action.HALT


def _decide_postgres(error: psycopg.Error) -> Action:
    state = error.diag.sqlstate
    if state is not None and type(error).sqlstate is None:
        return Action.PARK  # no SQLSTATE of Postgres' own: a function has raised it for a row
    return next((action for kind, action in _POSTGRES if isinstance(error, kind)), Action.HALT)


def _decide_elasticsearch(error: elasticsearch.ApiError | elasticsearch.TransportError) -> Action:
    if isinstance(error, elasticsearch.TransportError) or is_by_another(error):
        return Action.RETRY
    return Action.RETRY if error.status_code in _RETRIED_STATUSES else Action.HALT


def is_by_another(error: elasticsearch.ApiError) -> bool:
    """Whether it was something on the way that answered, and not Elasticsearch: a load balancer, a proxy."""
    if isinstance(error, elasticsearch.UnsupportedProductError):
        return True
    # Some of Elasticsearch's own refusals lack the header; they have its form.
    is_of_its_form = isinstance(error.body, dict) and isinstance(error.body.get("error"), dict)
    return not is_of_its_form and _PRODUCT not in error.meta.headers


def decide_item(status: int, kind: str) -> Action:
    """What to do about one document that a bulk request did not write.

    Args:
        status: The item's HTTP status.
        kind: Elasticsearch's name of the error.
    """
    if status in _RETRIED_ITEMS:
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
        if action is Action.RETRY or (parks and action is Action.PARK):
            raise
        said = _explain_in_work(error, document)
        raise DocumentError(said.message, hint=said.hint, document=document, generation=generation) from error


def is_of_data(error: BaseException | None) -> TypeGuard[psycopg.Error]:
    """Whether it was SQL that failed on the data that it met, not on the tables or the definition.

    Args:
        error: Postgres's, which is the cause of a `DocumentError`.
    """
    return isinstance(error, psycopg.Error) and decide(error) is Action.PARK


@dataclass(slots=True)
class Backoff:
    """Growing pauses with full jitter.

    Args:
        first_seconds: The longest that the first pause can be.
        longest_seconds: The longest that any can be.
    """

    first_seconds: float = 0.1
    longest_seconds: float = 5
    _attempts: int = 0

    def next_seconds(self) -> float:
        """How long to pause now: at least half of the limit, which doubles each time."""
        limit: float = min(self.longest_seconds, self.first_seconds * 2 ** min(self._attempts, 30))
        self._attempts += 1
        return limit * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret


def kind(error: BaseException) -> str:
    """What an error is, without what differs from one time to the next: numbers, nodes, times."""
    if isinstance(error, psycopg.Error):
        return f"{type(error).__name__} {error.sqlstate}"
    if isinstance(error, elasticsearch.ApiError):
        return f"{error.status_code} {error.message if _PRODUCT in error.meta.headers else type(error).__name__}"
    if isinstance(error, KafkaException):
        return str(error.args[0].name())
    return f"{type(error).__name__} {getattr(error, 'kind', '')}"


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
        return explain_refusal(document, reason(error))
    said = explain(error)
    assert said is not None  # noqa: S101 - each of those errors has words
    return said


def explain_refusal(document: str, said: str) -> IndexingError:
    """An index that takes no documents, in words."""
    return IndexingError(
        f"The index of {document} is gone or refuses: {said}",
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
            "create schemas and owns the tables; what the others need, `syncer grants` prints; and where row-level\n"
            "security is on, BYPASSRLS.",
        )
    if isinstance(error, pg.UndefinedTable | pg.InvalidSchemaName | pg.UndefinedFunction) and "syncer" in message:
        return SourceError(f"The database lacks the syncer schema: {message}", hint="Run: syncer migrate")
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None and "FATAL:" in message:
        return SourceError(
            f"Postgres refuses the connection: {message.partition('FATAL:')[2].strip()}",
            hint="Check the user, the password and the database of SYNCER_POSTGRES_DSN (or SYNCER_POSTGRES_READ_DSN).",
        )
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return SourceError(
            f"Postgres cannot be reached: {message}",
            hint="Check SYNCER_POSTGRES_DSN (or SYNCER_POSTGRES_READ_DSN), and that the server is up.",
        )
    if isinstance(error, pg.UndefinedTable | pg.UndefinedColumn):
        return ComposeError(
            f"The SELECT no longer fits the database: {message}", hint="Mend select.sql and run: syncer apply"
        )
    return SourceError(f"Postgres says: {message}", hint=error.diag.message_hint or "")


def _explain_elasticsearch(error: elasticsearch.ApiError | elasticsearch.TransportError) -> SyncerError:
    if isinstance(error, elasticsearch.TransportError):
        return IndexingError(
            f"Elasticsearch cannot be reached: {error.message}",
            hint="Check SYNCER_ELASTICSEARCH_URL (http or https), and that the server is up.",
        )
    if is_by_another(error):
        return _explain_another(error)
    said = reason(error)
    if CLUSTER_BLOCK in str(error.body):
        return IndexingError(
            f"Elasticsearch is blocked: {said}",
            hint="It has no master yet, or its settings cluster.blocks.* forbid writes: take them back.",
        )
    if isinstance(error, elasticsearch.NotFoundError):
        return IndexingError(
            f"An index of syncer's is gone: {said}",
            hint="Was it deleted by hand? `syncer verify` says what is missing, `syncer apply` makes it again.",
        )
    return _explain_login(error, said)


def _explain_login(error: elasticsearch.ApiError, said: str) -> SyncerError:
    """What Elasticsearch does not let syncer do, in words."""
    if isinstance(error, elasticsearch.AuthenticationException):
        return IndexingError(
            f"Elasticsearch refuses the login: {said}",
            hint="Was the API key revoked, or the password changed? Set SYNCER_ELASTICSEARCH_API_KEY, or _USERNAME\n"
            "and _PASSWORD, and start syncer again with it. Nothing is lost meanwhile.",
        )
    if isinstance(error, elasticsearch.AuthorizationException):
        return IndexingError(
            f"Elasticsearch refuses a privilege: {said}",
            hint="The role of SYNCER_ELASTICSEARCH_API_KEY, or _USERNAME, needs to manage and write the indices of\n"
            "the documents and syncer-state. Once it may, a daemon goes on by itself.",
        )
    return IndexingError(f"Elasticsearch answers {error.status_code}: {said}")


def _explain_another(error: elasticsearch.ApiError) -> SyncerError:
    """What something on the way to Elasticsearch says, in words."""
    if isinstance(error, elasticsearch.UnsupportedProductError):
        return IndexingError(
            "What answers at elasticsearch.url is not Elasticsearch",
            hint="Is it a load balancer's page? OpenSearch and other relatives are not supported.\n"
            "Check SYNCER_ELASTICSEARCH_URL.",
        )
    return IndexingError(
        f"Not Elasticsearch, but something before it answers {error.status_code}",
        hint="A load balancer or a proxy: is Elasticsearch up behind it? Check SYNCER_ELASTICSEARCH_URL.",
    )


def reason(error: elasticsearch.ApiError) -> str:
    """What Elasticsearch says of an error, on one line: of its root, and of its cause if that says more."""
    detail = error.body.get("error") if isinstance(error.body, dict) else None
    if not isinstance(detail, dict):
        return str(error.message)
    root = (detail.get("root_cause") or [detail])[0]
    said = str(root.get("reason", error.message))
    cause = detail.get("caused_by", {}).get("reason")
    return " ".join((f"{said}: {cause}" if cause and cause not in said else said).split())


_SAID_OF_KAFKA: tuple[tuple[frozenset[int], str, str], ...] = (
    (
        frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}),  # noqa: SLF001
        "Kafka has no such topic: {}",
        "A daemon makes it again, if it was there before; else run: syncer apply",
    ),
    (
        frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}),  # noqa: SLF001
        "Kafka cannot be reached: {}",
        "Check SYNCER_KAFKA_BOOTSTRAP_SERVERS, and that the broker is up.",
    ),
    (
        frozenset({KafkaError._AUTO_OFFSET_RESET}),  # noqa: SLF001
        "Changes are gone from the topic before they were read: {}",
        "The daemon writes every document again. Was the topic's retention too short? Then raise retention.ms.",
    ),
    (
        _TOO_LARGE_FOR_KAFKA,
        "Kafka takes not even a short record: {}",
        "Raise max.message.bytes of the topic, or message.max.bytes of the broker, to 10000 at least.",
    ),
    (
        frozenset({KafkaError._MSG_TIMED_OUT}),  # noqa: SLF001
        "Kafka does not acknowledge records: it is away, or too few replicas are in sync ({})",
        "Check that all brokers are up: min.insync.replicas of them must have what is written to each partition.",
    ),
    (
        frozenset({KafkaError._INVALID_ARG}),  # noqa: SLF001
        "Kafka's client says: {}",
        "Check kafka.properties: librdkafka's own names and values.",
    ),
)


def _explain_kafka(error: KafkaError) -> SyncerError:
    for codes, message, hint in _SAID_OF_KAFKA:
        if error.code() in codes:
            return TopicError(message.format(error.str()), hint=hint)
    return TopicError(
        f"Kafka says: {error.str().rstrip(': ')}",
        hint="Check SYNCER_KAFKA_BOOTSTRAP_SERVERS, and that the broker is up.",
    )
