"""The page of errors, ``docs/errors.md``, as the policy decides them: ``python -m tests.generated`` writes it.

Each action on it is what `syncer.base.error_policy` says when it is asked; only the meanings are words.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence

import elasticsearch
import psycopg
from confluent_kafka import KafkaError, KafkaException
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from psycopg import errors as pg

from syncer.base import error_policy, errors
from syncer.base.error_policy import Action, at_work_for, decide, decide_item
from syncer.base.errors import DocumentError, SyncerError
from syncer.base.retry import TELL_SECONDS, Backoff

_INTRODUCTION = """\
# Error handling

syncer handles every error in one of four ways, decided only in `syncer/base/error_policy.py`.

- **RETRY**: the component repeats the operation, with pauses of up to {longest:.0f} s and jitter. Nothing is skipped
  and no offset is committed. The log has `component.retried` once, with a hint, then every {tell:.0f} s, and
  `component.recovered` when it is over.
- **DEAD_LETTER**: the document becomes a dead letter and the rest of the batch continues. The dead letter clears when a
  newer version is written. The log has `document.dead_lettered`; `syncer status` shows the count.
- **SUSPEND**: the definition is suspended and the others continue. It resumes by itself once its tables are as before
  and not locked, and its index takes documents; otherwise `syncer apply` resumes it. Either way, every document is
  written. `document.suspended` in the log, and `syncer status` with exit code 1, show what to do. An index that
  Elasticsearch reports as unavailable suspends after a minute of RETRY, a table that stays locked after ten seconds.
- **FATAL**: the daemon stops with exit code 1. Nothing is lost: the next daemon continues where it stopped.
  `component.failed` in the log shows what to do.

The action depends on the context. Errors from a document's own SELECT or index can be the fault of that document; other
errors cannot.

The tables below describe a running daemon. When a daemon or a command starts, it first connects to each server. If it
cannot connect or log in, it exits with an error.
"""

_STATUSES = {
    400: "the request is wrong, or the index is closed",
    401: "the API key was revoked, or the password changed",
    403: "the role lacks a privilege; or cluster.blocks.read_only is set",
    404: "the index is gone",
    408: "the request timed out",
    409: "another client changes the same resource",
    413: "the request exceeds http.max_content_length: split in halves until it fits",
    429: "the queue is full or a circuit breaker tripped; a request that can never fit is split in halves",
    500: "an internal error or a full disk",
    502: "a load balancer cannot reach Elasticsearch",
    503: "no master is elected, or a shard is unavailable",
    504: "a load balancer timed out waiting for Elasticsearch",
}
_KINDS = {
    (400, "document_parsing_exception"): "a value does not fit the mapping; too many fields, nested objects, levels",
    (400, "illegal_argument_exception"): "a keyword is too long, a limit is exceeded",
    (400, "index_closed_exception"): "the index was closed by hand",
    (403, "cluster_block_exception"): "index.blocks.write or read_only was set by hand",
    (403, "security_exception"): "the role may not write this index",
    (404, "index_not_found_exception"): "the index, or its write alias, was deleted by hand",
    (408, "timeout"): "the request timed out",
    (409, "version_conflict_engine_exception"): "the index holds the same or a newer version: a success",
    (413, "too_large"): "the document alone exceeds the maximum request size",
    (
        429,
        "cluster_block_exception",
    ): "the disk is above the flood-stage watermark: lifted automatically when there is space",
    (429, "es_rejected_execution_exception"): "the queue is full",
    (
        500,
        "null_pointer_exception",
    ): "a bug in Elasticsearch; dead-lettered after a minute if nothing else is wrong",
    (502, "bad_gateway"): "a node is unavailable",
    (503, "unavailable_shards_exception"): "a shard has no primary",
    (504, "timeout"): "a node does not respond",
}
_TRANSPORT = {
    elasticsearch.ConnectionError: "connection refused, or closed, perhaps after the request was applied",
    elasticsearch.ConnectionTimeout: "no response within elasticsearch.request_timeout_seconds",
    elasticsearch.SSLError: "the certificate is not trusted",
    elasticsearch.SerializationError: "the response is truncated or not JSON",
}
_OURS = {
    errors.UnavailableError: "a shard or a node was unavailable during a read",
    errors.DeadLetteringError: "a dead letter could not be recorded",
    errors.ReplicaError: "the read replica is behind or unavailable",
    errors.RestoringError: "the database is being restored, or has no syncer schema",
    errors.ComposeError: "the SELECT returns an id twice, or no longer matches its tables",
    errors.IndexingError: "Elasticsearch is unsupported, or rejects an index",
    errors.DocumentError: "a document has to be suspended",
    errors.SourceError: "Postgres is unsupported, or the syncer schema is missing",
    errors.TopicError: "the topic is missing, or another installation writes to it",
    errors.LossError: "Kafka lost records: the component that detects it creates refresh jobs",
    errors.HangingError: "a component did not stop in time",
    errors.ConfigError: "a setting or an option is invalid",
    errors.DefinitionError: "a document's folder is invalid",
    errors.JobError: "the job does not exist",
    errors.TokenError: "a transaction cannot be waited for",
    errors.WaitTimeoutError: "a transaction was not indexed in time",
    errors.LockError: "a lock in Elasticsearch cannot be acquired as requested",
    errors.LockTimeoutError: "a lock was not acquired in time: it is held, or Elasticsearch does not respond",
    errors.LockLostError: "a lock was lost",
    errors.SandboxError: "an embedded server did not start",
}
_SQLSTATES = {
    "02": "no data",
    "03": "an incomplete statement",
    "08": "connection lost",
    "09": "a trigger's action",
    "0A": "feature not supported",
    "0B": "starting a transaction",
    "0F": "a locator",
    "0L": "an invalid grantor",
    "0P": "a role",
    "0Z": "diagnostics in a function",
    "10": "XQuery",
    "20": "no matching branch of a CASE in a function",
    "21": "a subquery returns more than one row",
    "22": "data that a function or a cast rejects",
    "23": "a constraint, in a function that the SELECT calls",
    "24": "a cursor",
    "25": "an invalid transaction state",
    "26": "a prepared statement's name",
    "27": "a trigger changes data that is already being changed",
    "28": "authentication failed: a changed password",
    "2B": "dependent privileges",
    "2D": "ending a transaction",
    "2F": "a function violates its declaration",
    "34": "a cursor's name",
    "38": "a function in another language failed",
    "39": "a function in another language failed",
    "3B": "a savepoint",
    "3D": "the database does not exist",
    "3F": "the schema does not exist",
    "40": "rolled back: deadlock, serialization",
    "42": "the SELECT no longer matches its tables, or a privilege is missing",
    "44": "a view's check option",
    "53": "disk full, memory, too many connections",
    "54": "a limit of Postgres",
    "55": "a lock, an object in use",
    "57": "cancelled, shutting down, starting up",
    "58": "the operating system",
    "72": "the snapshot is too old",
    "F0": "Postgres' own files",
    "HV": "a foreign table",
    "P0": "raised by a PL/pgSQL function",
    "XX": "an internal error or corrupted data",
}
_WHERE_ROWS_ARE_FOUND_OUT = """\
When building documents, syncer splits a batch in halves until it finds the row at fault. When a whole table is read, it
cannot tell which row is at fault.
"""
_CONFLICT = 409
_TOO_LARGE = 413
_NODE = NodeConfig("http", "search", 9200)
_CLASSES: dict[int, type[elasticsearch.ApiError]] = {
    400: elasticsearch.BadRequestError,
    401: elasticsearch.AuthenticationException,
    403: elasticsearch.AuthorizationException,
    404: elasticsearch.NotFoundError,
    409: elasticsearch.ConflictError,
}


def answered(
    status: int, *, by_elasticsearch: bool = True, reason: str = "because", **more: object
) -> elasticsearch.ApiError:
    """An answer as the client raises it."""
    meta = ApiResponseMeta(status=status, http_version="1.1", headers=HttpHeaders({}), duration=0.1, node=_NODE)
    error = {"type": "some_exception", "reason": reason, **more}
    body = {"error": error, "status": status} if by_elasticsearch else "<html>"
    return _CLASSES.get(status, elasticsearch.ApiError)(message="some_exception", meta=meta, body=body)


def in_work(error: Exception, *, isolates: bool = False) -> Action:
    """What becomes of an error that a document's own work met."""
    try:
        with at_work_for("post", 1, isolates=isolates):
            _raise(error)
    except Exception as raised:  # noqa: BLE001 - asked about next
        return decide(raised)
    raise AssertionError


def _raise(error: Exception) -> None:
    raise error


def statuses() -> list[int]:
    """Every status that the policy knows."""
    return sorted(error_policy._RETRIED_STATUSES | error_policy._DEAD_LETTERED_STATUSES | {404, 409})


def sqlstates() -> dict[str, list[type[psycopg.Error]]]:
    """Every error that Postgres names, by its class of SQLSTATEs."""
    found: dict[str, list[type[psycopg.Error]]] = defaultdict(list)
    for _, one in sorted(inspect.getmembers(pg, inspect.isclass)):
        if issubclass(one, psycopg.Error) and one.sqlstate:
            found[one.sqlstate[:2]].append(one)
    return dict(sorted(found.items()))


def kafka_codes() -> list[tuple[str, Action]]:
    """Every code of Kafka's client."""
    codes = {
        name: number
        for name, number in vars(KafkaError).items()
        if isinstance(number, int) and name.isupper() and not name.startswith("__")
    }
    return [(name, decide(KafkaException(KafkaError(number)))) for name, number in sorted(codes.items())]


def our_errors() -> list[type[SyncerError]]:
    """Every error that syncer raises on purpose."""
    return [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, SyncerError)]


def _made(kind: type[SyncerError]) -> SyncerError:
    return DocumentError("x", document="post", revision=1) if kind is DocumentError else kind("x")


def _say(action: Action) -> str:
    return action.name


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])


def _requests() -> Iterator[Sequence[str]]:
    for status in statuses():
        error = answered(status)
        # Too large: `syncer.elasticsearch.bulk` writes a bulk request in halves.
        working = "in halves" if status == _TOO_LARGE else _say(in_work(error))
        yield str(status), _STATUSES[status], working, _say(decide(error))
    another = answered(404, by_elasticsearch=False)
    yield (
        "any status, not from Elasticsearch",
        "an error page of a load balancer or proxy",
        _say(in_work(another)),
        _say(decide(another)),
    )
    for kind, meaning in _TRANSPORT.items():
        yield kind.__name__, meaning, _say(in_work(kind("x"))), _say(decide(kind("x")))


def _items() -> Iterator[Sequence[str]]:
    for (status, kind), meaning in sorted(_KINDS.items()):
        # A conflict is no error: `syncer.elasticsearch.bulk` counts it as skipped.
        yield str(status), f"`{kind}`", meaning, "done" if status == _CONFLICT else _say(decide_item(status, kind))


def _postgres() -> Iterator[Sequence[str]]:
    for prefix, kinds in sqlstates().items():
        rows: dict[tuple[Action, Action, Action], list[str]] = defaultdict(list)
        for kind in kinds:
            error = kind("x")
            answers = in_work(error, isolates=True), in_work(error), decide(error)
            rows[answers].append(f"{kind.__name__} ({kind.sqlstate})")
        for (dead_lettering, working, elsewhere), names in rows.items():
            meaning = _SQLSTATES[prefix]
            yield prefix, meaning, ", ".join(names), _say(dead_lettering), _say(working), _say(elsewhere)
    yield (
        "other",
        "raised by a function with a custom SQLSTATE",
        "",
        "DEAD_LETTER",
        "SUSPEND",
        "DEAD_LETTER",
    )
    away = psycopg.OperationalError("x")
    yield "none", "the server cannot be reached", "OperationalError", *[_say(decide(away))] * 3


def _kafka() -> Iterator[Sequence[str]]:
    by_action: dict[Action, list[str]] = defaultdict(list)
    for name, action in kafka_codes():
        by_action[action].append(f"`{name}`")
    for action, names in sorted(by_action.items(), key=lambda one: one[0].name):
        yield _say(action), ", ".join(names)


def _raised() -> Iterator[Sequence[str]]:
    for kind in our_errors():
        if kind is not SyncerError:
            yield kind.__name__, _OURS[kind], _say(in_work(_made(kind))), _say(decide(_made(kind)))
    defect = ValueError("x")
    yield "anything else", "a defect of syncer's: please report it", _say(in_work(defect)), _say(decide(defect))


def page() -> str:
    """The page."""
    introduction = _INTRODUCTION.format(longest=Backoff().longest_seconds, tell=TELL_SECONDS)
    where = ("In a document's work", "Elsewhere")
    parts = [
        introduction,
        "## Elasticsearch: requests\n",
        _table(("Answer", "Meaning", *where), _requests()),
        "\n## Elasticsearch: documents in a bulk request\n",
        _table(("Status", "Type, for example", "Meaning", "Action"), _items()),
        "\n## Postgres\n",
        _WHERE_ROWS_ARE_FOUND_OUT,
        _table(
            ("SQLSTATE", "Meaning", "Errors", "Composing documents", "In other work of one", "Elsewhere"), _postgres()
        ),
        "\n## Kafka\n",
        _table(("Action", "Codes"), _kafka()),
        "\n## syncer errors\n",
        _table(("Error", "Meaning", *where), _raised()),
        "\nGenerated by `python -m tests.generated` from `syncer/base/error_policy.py`.",
    ]
    return "\n".join(parts) + "\n"
