"""The error policy: one table from error to action, for every component. Also turns errors into messages with hints.

    RETRY        a server is unavailable: wait with backoff and repeat; nothing is skipped
    DEAD_LETTER  one row's document is at fault: it becomes a dead letter, the others continue
    SUSPEND      a definition, its tables or its index is at fault: only its documents wait
    FATAL        the set-up is at fault: the daemon ends with a hint; nothing is lost

Within the work for one document (`at_work_for`), what is FATAL elsewhere is SUSPEND. A DEAD_LETTER error is SUSPEND
too, unless the caller finds the row at fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TypeGuard

import elasticsearch
import psycopg
from confluent_kafka import KafkaException
from psycopg import errors as pg

from syncer.base.errors import (
    ComposeError,
    DocumentError,
    IndexingError,
    NotReadyError,
    SourceError,
    SyncerError,
    TopicError,
    UnavailableError,
)
from syncer.base.formatting import without_values
from syncer.base.model import WRITE_SUFFIX


class Action(Enum):
    """What to do about an error."""

    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    SUSPEND = "suspend the document"
    FATAL = "fatal"


# By class of SQLSTATE; any other is FATAL: a column, a table, a type, a privilege.
_BY_CLASS = {
    **dict.fromkeys(("08", "25", "40", "53", "55", "57", "58", "72", "HV"), Action.RETRY),  # away, overloaded, conflict
    # The data, or a function that met it.
    **dict.fromkeys(("02", "20", "21", "22", "23", "2F", "38", "39", "54", "P0", "XX"), Action.DEAD_LETTER),
}
_TOO_MUCH = (pg.OutOfMemory, pg.ConfigurationLimitExceeded, pg.QueryCanceled)
TOO_MUCH_KINDS = tuple(error.__name__ for error in _TOO_MUCH)
"""The kinds of errors of a statement that needs more memory, locks, temporary files or time than it may take."""
NO_ROOM = 429
"""The status with which Elasticsearch refuses what it has no memory or no place in a queue for."""
_RETRIED_ITEMS = frozenset({408, NO_ROOM, 500, 502, 503, 504})
_FORBIDDEN = frozenset({401, 403})
# A login is checked when a component starts. What is refused later, an operator has changed, and may revert.
_RETRIED_STATUSES = _RETRIED_ITEMS | _FORBIDDEN
PRODUCT, OPENSEARCH_VERSION = "x-elastic-product", "x-opensearch-version"
"""The headers with which the servers name themselves; `syncer.elasticsearch.client` adds the first for OpenSearch."""
ITEM_FAILED = 500
"""The status of a document at which Elasticsearch failed: it is retried some times, and then counts as refused."""
CLUSTER_BLOCK = "cluster_block_exception"
OF_INDEX = frozenset({CLUSTER_BLOCK, "index_closed_exception", "unavailable_shards_exception"})
"""The kinds of errors with which an index takes no documents for now."""
OF_DOCUMENT = frozenset(
    {
        *("document_parsing_exception", "mapper_parsing_exception", "strict_dynamic_mapping_exception"),
        *("parse_exception", "x_content_parse_exception"),
    }
)
"""The kinds of errors with which Elasticsearch refuses what one document holds."""
_ALIAS_GONE = re.compile(rf"no such index \[([^]]+){WRITE_SUFFIX}-\d+\]")

_KAFKA_DENIED = {"TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"}
# A missing topic is retried: the component that starts over detects and creates it.
_FATAL_KAFKA = {"_AUTHENTICATION", "_INVALID_ARG", "SASL_AUTHENTICATION_FAILED", *_KAFKA_DENIED}
_KAFKA_AWAY = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_MSG_TIMED_OUT"}


def decide(error: BaseException) -> Action:
    """Return the action for an error of a component."""
    if isinstance(error, DocumentError):
        return Action.SUSPEND
    if isinstance(error, psycopg.Error) and (state := error.diag.sqlstate or error.sqlstate):
        is_made_up = type(error).sqlstate is None  # no SQLSTATE of Postgres': a function raised it for a row
        return _BY_CLASS.get(state[:2], Action.DEAD_LETTER if is_made_up else Action.FATAL)
    if isinstance(error, psycopg.DataError):  # raised by the client
        return Action.DEAD_LETTER
    if isinstance(error, elasticsearch.ApiError):
        is_retried = is_by_another(error) or error.status_code in _RETRIED_STATUSES
    elif isinstance(error, KafkaException):
        is_retried = error.args[0].name() not in _FATAL_KAFKA
    else:
        unanswered = (psycopg.OperationalError, psycopg.InterfaceError, elasticsearch.TransportError)
        is_retried = isinstance(error, (*unanswered, UnavailableError, NotReadyError))
    return Action.RETRY if is_retried else Action.FATAL


def decide_item(status: int, kind: str, reason: str = "") -> Action:
    """Return the action for one document that a bulk request did not write.

    DEAD_LETTER means that the document or the index is at fault, or another document of the request. Which one shows
    once the document is refused alone, and others are not: see `syncer.indexing.writer`.
    """
    if kind in OF_INDEX or _ALIAS_GONE.search(reason):
        # A block of the cluster may be set during the request.
        return Action.RETRY if "cluster read-only" in reason else Action.SUSPEND
    if status in _RETRIED_ITEMS:
        return Action.RETRY
    return Action.SUSPEND if status in _FORBIDDEN else Action.DEAD_LETTER


# Messages of a server that refuses connections for now; it speaks them in its own language, if that is not English.
_FOR_NOW = re.compile(r"starting up|shutting down|recovery|too many|not (yet )?accepting|terminating")


def is_refused(error: BaseException) -> bool:
    """Whether a server refuses the login or the privileges, so that a program that starts need not wait for it."""
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return "FATAL:" in str(error) and not _FOR_NOW.search(str(error))
    return isinstance(error, elasticsearch.AuthenticationException | elasticsearch.AuthorizationException)


def is_away(error: BaseException) -> bool:
    """Whether a server did not answer, refused the connection or ended it."""
    if isinstance(error, psycopg.Error):
        if error.sqlstate is not None:
            return error.sqlstate.startswith(("08", "57P"))
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return is_lost and "too many" not in str(error) and not is_refused(error)
    if isinstance(error, KafkaException):
        return error.args[0].name() in _KAFKA_AWAY
    return isinstance(error, elasticsearch.ConnectionError | elasticsearch.ConnectionTimeout)


def is_by_another(error: elasticsearch.ApiError) -> bool:
    """Whether the response came from a proxy or load balancer instead of Elasticsearch."""
    # Some of Elasticsearch's own error responses lack the header, but have its JSON structure.
    is_of_its_form = isinstance(error.body, dict) and isinstance(error.body.get("error"), dict)
    is_from_it = is_of_its_form or PRODUCT in error.meta.headers
    return not is_from_it or isinstance(error, elasticsearch.UnsupportedProductError)


def answerer(error: elasticsearch.ApiError) -> str:
    """Return the name of the product that answered."""
    return "OpenSearch" if OPENSEARCH_VERSION in error.meta.headers else "Elasticsearch"


def is_of_data(error: BaseException | None) -> TypeGuard[psycopg.Error]:
    """Whether this is a Postgres error about the data, not about the tables or the definition."""
    return isinstance(error, psycopg.Error) and decide(error) is Action.DEAD_LETTER


def takes_too_much(error: BaseException | None) -> TypeGuard[psycopg.Error]:
    """Whether Postgres gave up a statement that needs too much. It may be the statement, or what else runs now."""
    return isinstance(error, _TOO_MUCH)


def is_of_some_rows(error: BaseException) -> bool:
    """Whether Postgres failed on the data, or gave up, as a cause of this error: other rows may well be read."""
    cause = error.__cause__ if isinstance(error, DocumentError) else error
    return is_of_data(cause) or takes_too_much(cause)


@contextmanager
def at_work_for(document: str, revision: int, *, isolates: bool = False, in_time: bool = False) -> Iterator[None]:
    """Run a document's own SQL, or requests to its own index; errors that are its fault become a `DocumentError`.

    If the caller ``isolates`` faulty rows, DEAD_LETTER errors are raised unchanged, and those of limits. That a
    statement was cancelled is its fault only if it has to end ``in_time``.

    Raises:
        DocumentError: The document must be suspended.
        Exception: Any other error, unchanged.
    """
    try:
        yield
    except (psycopg.Error, elasticsearch.ApiError, ComposeError, IndexingError) as error:
        action = decide(error)
        is_limit = takes_too_much(error) and (in_time or not isinstance(error, pg.QueryCanceled))
        if (action is Action.RETRY and not is_limit) or (isolates and (is_limit or action is Action.DEAD_LETTER)):
            raise
        explained: SyncerError
        if isinstance(error, psycopg.Error):
            explained = explain_select(error, document)
        elif isinstance(error, elasticsearch.ApiError):
            explained = explain_refusal(document, reason(error))
        else:
            explained = error
        raise DocumentError.of(explained, document, revision, ids=getattr(error, "ids", ())) from error


def kind(error: BaseException) -> str:
    """Return the kind of an error without details that vary: numbers, nodes, times."""
    if isinstance(error, psycopg.Error):
        return f"{type(error).__name__} {error.sqlstate}"
    if isinstance(error, elasticsearch.ApiError):
        return f"{error.status_code} {error.message if PRODUCT in error.meta.headers else type(error).__name__}"
    if isinstance(error, KafkaException):
        return str(error.args[0].name())
    return f"{type(error).__name__} {getattr(error, 'kind', '')}"


def explain(error: BaseException) -> SyncerError | None:
    """Return an error with a message and a hint for the user; None if it is unexpected."""
    if isinstance(error, SyncerError):
        return error
    if isinstance(error, psycopg.Error):
        return _explain_postgres(error)
    if isinstance(error, elasticsearch.TransportError):
        is_tls = isinstance(error, elasticsearch.SSLError)
        hint = "that the server speaks TLS, and elasticsearch.ca_certs" if is_tls else "and that the server is up"
        hint = f"Check SYNCER_ELASTICSEARCH_URL (http or https, host and port), {hint}."
        message = f"Elasticsearch cannot be reached: {error.message}"
        if isinstance(error, elasticsearch.SerializationError):  # its message quotes the response
            message, hint = "elasticsearch.url answers with something other than JSON", _IS_IT_A_PROXY
        return IndexingError(message, hint=hint)
    if isinstance(error, elasticsearch.ApiError):
        return _explain_elasticsearch(error)
    if isinstance(error, KafkaException):
        name, text = error.args[0].name(), error.args[0].str().rstrip(": ")
        message, hint = next((row[1:] for row in _KAFKA if name in row[0]), ("Kafka answers", ""))
        return TopicError(f"{message}: {text}", hint=hint)
    return None


def failure_of(error: psycopg.Error) -> str:
    """Say how a SELECT fails for some rows, without a value of them."""
    if is_of_data(error):
        return f"fails on the data: {kind(error)}"
    limit = "does not end in time" if isinstance(error, pg.QueryCanceled) else "needs more than Postgres gives it"
    return f"{limit}: {(error.diag.message_primary or str(error)).strip()}"


def explain_select(error: psycopg.Error, document: str) -> SyncerError:
    """Explain why a document's SELECT fails, without a value of a row."""
    if is_of_data(error):
        return ComposeError(
            f"The SELECT of {document} {failure_of(error)}",
            hint="`syncer plan` says on which value. If you fix the rows, the document resumes by itself.\n"
            "Otherwise, fix select.sql and run: syncer apply",
        )
    if takes_too_much(error):
        hint = error.diag.message_hint or "Let select.sql read less, or raise the limit."
        if isinstance(error, pg.QueryCanceled):
            hint = "Let select.sql read less. A recursive CTE never ends on a cycle: see docs/dead-letters.md."
        return ComposeError(
            f"The SELECT of {document} {failure_of(error)}", hint=f"{hint}\nIt resumes by itself once it can be read."
        )
    message = (error.diag.message_primary or str(error)).strip()
    if isinstance(error, pg.InsufficientPrivilege):
        return SourceError(
            f"Postgres does not let syncer read all that {document} shows: {message}{_in_function(error)}",
            hint=f"{_needed(message)}\nThen run: syncer apply",
        )
    return explain_unqualified(error, f"the SELECT of {document}") or ComposeError(
        f"The SELECT of {document} no longer fits the database: {message}",
        hint="Fix the tables, select.sql or its affects queries. Then run: syncer apply",
    )


def _explain_postgres(error: psycopg.Error) -> SourceError:
    if is_of_data(error):  # its message may quote a row
        return SourceError(
            f"Postgres fails on the data: {kind(error)}{_in_function(error)}",
            hint="With --debug, the traceback says on which.",
        )
    message = (error.diag.message_primary or str(error)).strip()
    if isinstance(error, pg.InsufficientPrivilege):
        return SourceError(
            f"Postgres refuses: {message}{_in_function(error)}",
            hint=f"{_needed(message)}\nWhat the role of postgres.dsn needs for each command is in docs/roles.sql.",
        )
    if isinstance(error, pg.UndefinedTable | pg.InvalidSchemaName | pg.UndefinedFunction) and _OUR_SCHEMA.search(
        message
    ):
        return SourceError(f"The database lacks the syncer schema: {message}", hint="Run: syncer migrate")
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        _, is_refusal, refusal = message.partition("FATAL:")
        if is_refusal:
            hint = "Check the user, the password, the database and sslmode in SYNCER_POSTGRES_DSN, and pg_hba.conf."
            if _FOR_NOW.search(refusal):
                hint = "It is refused for now, by the server or by a limit of connections: try again later."
            return SourceError(f"Postgres refuses the connection: {refusal.strip()}", hint=hint)
        # The question that libpq asks is in the hint.
        cause = _one_line(re.sub(r"\n\s*Is the server running .*", "", message))
        hint = "Check SYNCER_POSTGRES_DSN, and that the server is up."
        return SourceError(f"Postgres cannot be reached: {cause}", hint=hint)
    hint = _READ_ONLY if isinstance(error, pg.ReadOnlySqlTransaction) else ""
    return SourceError(f"Postgres says: {message}", hint=error.diag.message_hint or hint)


_READ_ONLY = """Is it a standby: SELECT pg_is_in_recovery()? Or is default_transaction_read_only on for the role or the
database, as some services set it while their disk is full?"""
_OUR_SCHEMA = re.compile(r'"syncer[".]| syncer\.')
_NEEDED = (
    ("temporary tables", "Grant it: GRANT TEMPORARY ON DATABASE … TO …. syncer reads a SELECT by a temporary view."),
    ("row-level security", "The role must own the table, or see every row: ALTER ROLE … BYPASSRLS."),
    ("must be owner", "Only the owner may do that. Make the role a member of it: GRANT owner TO …."),
    ("for function", "Grant it: GRANT EXECUTE ON FUNCTION … TO …."),
    ("for schema", "Grant it: GRANT USAGE ON SCHEMA … TO …; to create in it, also CREATE."),
    ("for database", "Grant it: GRANT CREATE ON DATABASE … TO …."),
    ("for table", "Grant it, for all columns: GRANT SELECT ON … TO …; `syncer apply` must own the table."),
    ("for view", "Grant it: GRANT SELECT ON … TO …."),
)
"""What a role lacks, by words of Postgres' message."""


def _needed(message: str) -> str:
    return next((hint for words, hint in _NEEDED if words in message), "The role of postgres.dsn lacks a privilege.")


def _in_function(error: psycopg.Error) -> str:
    caller = _CALLER.search(error.diag.context or "")
    return f" (in the function {caller[1]})" if caller else ""


_CALLER = re.compile(r'(?:SQL|PL/pgSQL) function "?([^"\n]+?)"? (?:near line|line|statement|during)')


def explain_unqualified(error: psycopg.Error, query: str) -> ComposeError | None:
    """Explain a function that names something without its schema, which psql finds and syncer does not."""
    caller = _CALLER.search(error.diag.context or "")
    if caller is None or not isinstance(error, pg.UndefinedFunction | pg.UndefinedTable | pg.UndefinedObject):
        return None
    # Postgres names some functions with their arguments, and others without.
    function = caller[1] if caller[1].endswith(")") else f"{caller[1]}(…)"
    return ComposeError(
        f"The function {function}, which {query} calls, names something without its schema: "
        f"{error.diag.message_primary}",
        hint="syncer uses search_path = pg_catalog, pg_temp. Write the schema in the function's body, or name the\n"
        f"schemas that it needs: ALTER FUNCTION {function} SET search_path = …;\nThen run: syncer apply",
    )


def explain_refusal(document: str, cause: str) -> IndexingError:
    """Explain an index that accepts no documents."""
    alias = _ALIAS_GONE.search(cause)
    if missing := alias or re.search(r"no such index \[([^]]+)\]", cause):
        return IndexingError(
            f"The index {missing[1]} of {document}{', or its write alias,' if alias else ''} is gone",
            hint="Was it deleted? To make it again and write every document, run: syncer apply",
        )
    return IndexingError(
        f"The index of {document} refuses documents: {_one_line(without_values(cause))}",
        hint="Once that is put right, the document resumes by itself.",
    )


def explain_refusals(document: str, cause: str) -> IndexingError:
    """Explain an index that refuses whatever document is sent to it alone."""
    return IndexingError(
        f"Every document of {document} that was tried is refused: {_one_line(without_values(cause))}",
        hint="Look at what it names: an alias, an inference endpoint or the mapping of the index, or a\n"
        "field of all these rows. Every few seconds some are tried: it resumes by itself once one is taken.",
    )


_ELASTICSEARCH = (
    (
        r"401 ",
        "{} refuses the login",
        "Check SYNCER_ELASTICSEARCH_API_KEY, or _USERNAME and _PASSWORD. If one of them changes, restart the daemons.",
    ),
    (
        r"403 .*( is unauthorized|no permissions for)",
        "{} refuses a privilege",
        "docs/security.md lists what the role of each duty needs.",
    ),
    (
        r"404 index_not_found_exception",
        "An index is gone",
        "Was it deleted by hand? `syncer status` names the index of a document that is gone. To make it: syncer apply",
    ),
    (
        r"429 (es_rejected_execution|circuit_breaking)_exception",
        "{} has no room for the request",
        "Run fewer loads at a time, or give its heap more memory (docs/sizing.md). Nothing is lost.",
    ),
    (
        r"503 .*(no master|not recovered|master_not_discovered)",
        "{} has no master",
        "If it stays so, see the logs of its nodes, and whether their disks are full.",
    ),
)
"""By the status, type and reason of an error: one status has many causes."""
_IS_IT_A_PROXY = (
    "Is it a load balancer or a proxy, and is Elasticsearch or OpenSearch up behind it? Check\n"
    "SYNCER_ELASTICSEARCH_URL, and for 401 or 403, also the credentials."
)
_BLOCK = re.compile(r"blocked by: \[\w+/\d+/(index|cluster) ([\w-]+(?: / allow delete)?) \(api\)")


def _explain_elasticsearch(error: elasticsearch.ApiError) -> IndexingError:
    if is_by_another(error):
        return IndexingError(
            f"elasticsearch.url answers {error.status_code}, and does not say that it is a search server",
            hint=_IS_IT_A_PROXY,
        )
    cause = reason(error)
    server = answerer(error)
    message, hint = f"{server} answers {error.status_code}", ""
    for pattern, shown, advice in _ELASTICSEARCH:
        if re.match(pattern, f"{error.status_code} {error.message} {cause}"):
            message, hint = shown.format(server), advice
    if "flood-stage watermark" in cause:
        message = f"{server}'s disk is full"
        hint = "Make room on the disk of its nodes, or add one: it lifts the block by itself, and a daemon goes on."
    elif CLUSTER_BLOCK in str(error.body):
        message = f"{server} is blocked"
        if block := _BLOCK.search(cause):
            hint = f"{block[1]}.blocks.{re.sub('[ /-]+', '_', block[2])} is true: set it to false."
    return IndexingError(f"{message}: {cause}", hint=hint)


def reason(error: elasticsearch.ApiError) -> str:
    """Return Elasticsearch's reason for an error on one line: the root cause, and the cause if it adds something."""
    detail = error.body.get("error") if isinstance(error.body, dict) else None
    if not isinstance(detail, dict):
        return str(error.message)
    root = str((detail.get("root_cause") or [detail])[0].get("reason") or error.message)  # some have none
    cause = detail.get("caused_by", {}).get("reason")
    return _one_line(without_values(f"{root}: {cause}" if cause and cause not in root else root))


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip("; .")


_KAFKA: tuple[tuple[set[str], str, str], ...] = (
    ({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}, "Kafka has no such topic", "A daemon that may create it does."),
    (_KAFKA_DENIED, "Kafka refuses a privilege", "docs/security.md lists the ACLs of each duty."),
    (
        {"_MSG_TIMED_OUT"},
        "Kafka does not acknowledge records: it is away, or too few replicas are in sync",
        "Check that all brokers are up: min.insync.replicas of them must have what is written to each partition.",
    ),
    (_KAFKA_AWAY, "Kafka cannot be reached", "Check SYNCER_KAFKA_BOOTSTRAP_SERVERS, and that the broker is up."),
    (
        {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"},
        "Kafka refuses the size of a record, or of a batch of them",
        "Give max.message.bytes of the topic its default, 1 MB, or grant syncer DescribeConfigs on the topic.",
    ),
    ({"_INVALID_ARG"}, "Kafka's client refuses a setting", "Check kafka.properties: the names are librdkafka's."),
)
