"""The page of errors, ``docs/errors.md``, as the policy decides them: ``python -m tests.errors_page`` writes it.

Each action on it is what `syncer.policy` says when it is asked; only the meanings are words.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import elasticsearch
import psycopg
from confluent_kafka import KafkaError, KafkaException
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from psycopg import errors as pg

from syncer import errors, policy
from syncer.errors import DocumentError, SyncerError, UnwellError
from syncer.lifecycle import TELL_SECONDS
from syncer.policy import Action, at_work_for, decide, decide_item

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"

_INTRODUCTION = """\
# What becomes of an error

Every error that syncer meets has one of five answers, and `syncer/policy.py` is the only place that gives them.

- **RETRY**: the stage waits and does the same again, with pauses of up to {longest:.0f} s, which chance makes
  shorter by up to half. Nothing is skipped, no offset is committed. The log says `stage.retried` once, with what to do,
  then each {tell:.0f} s how often and for how long, and `stage.recovered` when it is over.
- **PARK**: one document becomes a dead letter, its siblings go on. It is cleared by itself when a newer version of it
  is written. The log says `document.parked`; `syncer status` counts them.
- **HALT THE DOCUMENT**: one definition stops, the others go on. `syncer apply` lets it go on, and writes what it has
  missed. `document.halted` and `syncer status`, with exit code 1, say what to do.
- **LEAVE**: an index takes nothing for now, and Elasticsearch says itself that it is unwell. After a minute of RETRY
  its documents are left to a job, a catch-up, which is done once it is well, and the others go on.
  `document.postponed` and `syncer status`, with exit code 1, say what to do.
- **HALT**: the daemon ends with exit code 1. Nothing is lost: the next one begins where it was. `stage.failed` says
  what to do.

Where an error is met decides with it: what a document's own SELECT and its own index say can be that document's fault,
what anything else says cannot.

A daemon that begins, and a command, asks each server first. What it cannot reach then, or may not enter, it says, and
ends. Below is what a daemon does that has been at work.
"""

_STATUSES = {
    400: "the request is wrong, or the index is closed",
    401: "the API key was revoked, or the password changed",
    403: "the role lacks a privilege; or cluster.blocks.read_only is set",
    404: "the index is gone",
    408: "it took too long",
    409: "somebody else is at it",
    413: "the request is larger than http.max_content_length: written in halves until it fits",
    429: "the queue is full, a circuit breaker has tripped; what is larger than it ever takes is written in halves",
    500: "a defect or a full disk",
    502: "a load balancer finds no Elasticsearch",
    503: "no master is elected, or a shard is away",
    504: "a load balancer waits for Elasticsearch no longer",
}
_KINDS = {
    (400, "document_parsing_exception"): "a value does not fit the mapping; too many fields, nested objects, levels",
    (400, "illegal_argument_exception"): "a keyword is too long, a limit is exceeded",
    (400, "index_closed_exception"): "the index was closed by hand",
    (403, "cluster_block_exception"): "index.blocks.write or read_only was set by hand",
    (403, "security_exception"): "the role may not write this index",
    (404, "index_not_found_exception"): "the index, or its write alias, was deleted by hand",
    (408, "timeout"): "it took too long",
    (409, "version_conflict_engine_exception"): "something at least as new is there: a success",
    (413, "too_large"): "the document alone is larger than a request may be",
    (429, "cluster_block_exception"): "the disk is at the flood stage: lifted by itself when there is space",
    (429, "es_rejected_execution_exception"): "the queue is full",
    (500, "null_pointer_exception"): "a defect of Elasticsearch's; parked after a minute if nothing else is wrong",
    (502, "bad_gateway"): "a node is away",
    (503, "unavailable_shards_exception"): "a shard has no primary",
    (504, "timeout"): "a node does not answer",
}
_TRANSPORT = {
    elasticsearch.ConnectionError: "nobody listens, or the connection was cut, perhaps after the request was applied",
    elasticsearch.ConnectionTimeout: "no answer in elasticsearch.request_timeout_seconds",
    elasticsearch.SSLError: "the certificate is not trusted",
    elasticsearch.SerializationError: "the answer is cut short, or no JSON",
}
_OURS = {
    errors.UnavailableError: "a shard or a node was away while syncer read",
    errors.ParkingError: "what cannot be written cannot be recorded as a dead letter",
    errors.ReplicaError: "the replica to read on is behind or away",
    errors.RestoringError: "the database is being restored, or has no syncer schema",
    errors.ComposeError: "the SELECT gives an id twice, or no longer fits",
    errors.IndexingError: "Elasticsearch is unsupported, or refuses an index",
    errors.UnwellError: "an index that serves has taken nothing for a minute, and is red or blocked by a full disk",
    errors.DocumentError: "a document cannot go on, and says why",
    errors.SourceError: "Postgres is unsupported, or without the schema",
    errors.TopicError: "the topic is missing, or others write to it",
    errors.LossError: "Kafka has lost records: the documents are written again, by whoever met it",
    errors.HangingError: "a stage did not end when it was told to",
    errors.ConfigError: "a setting is wrong",
    errors.DefinitionError: "a document's folder is wrong",
    errors.JobError: "there is no such job",
    errors.TokenError: "a transaction cannot be waited for",
    errors.WaitTimeoutError: "a transaction is not indexed in time",
    errors.LockError: "a lock in Elasticsearch cannot be had as asked",
    errors.LockTimeoutError: "a lock cannot be had in time: somebody else holds it, or Elasticsearch does not answer",
    errors.LockLostError: "a lock was taken away",
    errors.SandboxError: "an embedded server did not start",
}
_SQLSTATES = {
    "02": "no data",
    "03": "a statement is not complete",
    "08": "the connection is gone",
    "09": "a trigger's action",
    "0A": "what Postgres cannot do",
    "0B": "beginning a transaction",
    "0F": "a locator",
    "0L": "who grants",
    "0P": "a role",
    "0Z": "diagnostics in a function",
    "10": "XQuery",
    "20": "a CASE in a function has no branch for it",
    "21": "a subquery gives several rows where one is wanted",
    "22": "data that a function or a cast does not take",
    "23": "a constraint, in a function that the SELECT calls",
    "24": "a cursor",
    "25": "what a transaction may do",
    "26": "a prepared statement's name",
    "27": "a trigger changes what is changed already",
    "28": "the login: a password that was changed",
    "2B": "privileges that depend",
    "2D": "ending a transaction",
    "2F": "a function does what it may not",
    "34": "a cursor's name",
    "38": "a function in another language failed",
    "39": "a function in another language failed",
    "3B": "a savepoint",
    "3D": "there is no such database",
    "3F": "there is no such schema",
    "40": "rolled back: deadlock, serialization",
    "42": "the SELECT no longer fits, or a privilege is missing",
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
    "XX": "a defect or corrupted data",
}
_WHERE_ROWS_ARE_FOUND_OUT = """\
Where documents are composed, a batch is halved until the row at fault is alone; where a whole table is read, it cannot
be told which row is at fault.
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


def in_work(error: Exception, *, parks: bool = False) -> Action:
    """What becomes of an error that a document's own work met."""
    try:
        with at_work_for("post", 1, parks=parks):
            _raise(error)
    except Exception as raised:  # noqa: BLE001 - asked about next
        return decide(raised)
    raise AssertionError


def _raise(error: Exception) -> None:
    raise error


def statuses() -> list[int]:
    """Every status that the policy knows."""
    return sorted(policy._RETRIED_STATUSES | policy._PARKED_STATUSES | {404, 409})


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
    if kind is UnwellError:
        return UnwellError("x", index_name="post")
    return DocumentError("x", document="post", generation=1) if kind is DocumentError else kind("x")


def _say(action: Action) -> str:
    return {Action.HALT_DOCUMENT: "HALT THE DOCUMENT"}.get(action, action.name)


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])


def _requests() -> Iterator[Sequence[str]]:
    for status in statuses():
        error = answered(status)
        # Too large: `syncer.index` writes a bulk request in halves.
        working = "in halves" if status == _TOO_LARGE else _say(in_work(error))
        yield str(status), _STATUSES[status], working, _say(decide(error))
    another = answered(404, by_elasticsearch=False)
    yield (
        "any status, not from Elasticsearch",
        "a page of a load balancer's or a proxy's",
        _say(in_work(another)),
        _say(decide(another)),
    )
    for kind, meaning in _TRANSPORT.items():
        yield kind.__name__, meaning, _say(in_work(kind("x"))), _say(decide(kind("x")))


def _items() -> Iterator[Sequence[str]]:
    for (status, kind), meaning in sorted(_KINDS.items()):
        # A conflict is no error: `syncer.index` counts it as superseded.
        yield str(status), f"`{kind}`", meaning, "done" if status == _CONFLICT else _say(decide_item(status, kind))


def _postgres() -> Iterator[Sequence[str]]:
    for prefix, kinds in sqlstates().items():
        rows: dict[tuple[Action, Action, Action], list[str]] = defaultdict(list)
        for kind in kinds:
            error = kind("x")
            answers = in_work(error, parks=True), in_work(error), decide(error)
            rows[answers].append(f"{kind.__name__} ({kind.sqlstate})")
        for (parking, working, elsewhere), names in rows.items():
            meaning = _SQLSTATES[prefix]
            yield prefix, meaning, ", ".join(names), _say(parking), _say(working), _say(elsewhere)
    yield "other", "raised by a function, with a SQLSTATE of its own", "", "PARK", "HALT THE DOCUMENT", "PARK"
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
    introduction = _INTRODUCTION.format(longest=policy.Backoff().longest_seconds, tell=TELL_SECONDS)
    where = ("In a document's work", "Elsewhere")
    parts = [
        introduction,
        "## Elasticsearch: a request as a whole\n",
        _table(("Answer", "Meaning", *where), _requests()),
        "\n## Elasticsearch: one document of a bulk request\n",
        _table(("Status", "Type, for example", "Meaning", "What becomes of it"), _items()),
        "\n## Postgres\n",
        _WHERE_ROWS_ARE_FOUND_OUT,
        _table(
            ("SQLSTATE", "Meaning", "Errors", "Composing documents", "In other work of one", "Elsewhere"), _postgres()
        ),
        "\n## Kafka\n",
        _table(("Answer", "Codes"), _kafka()),
        "\n## Errors of syncer's own\n",
        _table(("Error", "Meaning", *where), _raised()),
        "\nThis page is written by `python -m tests.errors_page`, from `syncer/policy.py`.",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
