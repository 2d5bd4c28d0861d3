"""Every error has one decision, and one sentence for a person; retries wait longer and longer, and are logged once."""

from __future__ import annotations

import re
from typing import Any

import elasticsearch
import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch.exceptions import HTTP_EXCEPTIONS
from psycopg import errors as pg
from structlog.testing import capture_logs

from syncer.base import errors
from syncer.base.error_policy import (
    TOO_MUCH_KINDS,
    Action,
    at_work_for,
    decide,
    decide_item,
    explain,
    is_away,
    is_of_some_rows,
)
from syncer.base.errors import DocumentError
from syncer.base.formatting import without_values
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.retry import retry

RETRY, DEAD_LETTER, SUSPEND, FATAL = Action.RETRY, Action.DEAD_LETTER, Action.SUSPEND, Action.FATAL


def api_error(status: int, body: Any = None, kind: str = "any_exception") -> elasticsearch.ApiError:
    """An answer of Elasticsearch, as its client raises it."""
    node = NodeConfig("http", "search", 9200)
    meta = ApiResponseMeta(status=status, http_version="1.1", headers=HttpHeaders({}), duration=0.1, node=node)
    body = body or {"error": {"type": "any_exception", "reason": "because"}, "status": status}
    kinds: dict[int, type[elasticsearch.ApiError]] = {**HTTP_EXCEPTIONS, 200: elasticsearch.UnsupportedProductError}
    return kinds.get(status, elasticsearch.ApiError)(message=kind, meta=meta, body=body)


def refusal(status: int, kind: str, reason: str | None) -> elasticsearch.ApiError:
    """An answer of Elasticsearch with an error of this type."""
    return api_error(status, {"error": {"type": kind, "reason": reason}, "status": status}, kind)


def kafka_error(name: str) -> KafkaException:
    """An error as confluent_kafka raises it."""
    return KafkaException(KafkaError(getattr(KafkaError, name)))


def instances(names: str, module: Any = pg) -> list[Exception]:
    """An error of each of these classes."""
    return [getattr(module, name)("what happened") for name in names.split()]


def of_kafka(names: str) -> list[Exception]:
    """Each of these errors of Kafka."""
    return [kafka_error(name) for name in names.split()]


# What a component does about an error, what is done about it in the work for a document, and such errors.
DECISIONS: list[tuple[Action, Action, list[Exception]]] = [
    (RETRY, RETRY, instances("SerializationFailure DeadlockDetected QueryCanceled LockNotAvailable ObjectInUse")),
    (RETRY, RETRY, instances("AdminShutdown CannotConnectNow TooManyConnections DiskFull SnapshotTooOld")),
    (RETRY, SUSPEND, instances("OutOfMemory ConfigurationLimitExceeded")),
    (RETRY, RETRY, instances("IdleInTransactionSessionTimeout")),
    (RETRY, RETRY, instances("OperationalError InterfaceError", psycopg)),
    (RETRY, RETRY, instances("UnavailableError NotReadyError", errors)),
    (RETRY, RETRY, instances("ConnectionError ConnectionTimeout SSLError SerializationError", elasticsearch)),
    (RETRY, RETRY, [*map(api_error, (401, 403, 408, 429, 500, 502, 503, 504))]),
    # A load balancer's page.
    (RETRY, RETRY, [api_error(status, "<html>") for status in (200, 302, 400, 404, 405, 502)]),
    (RETRY, RETRY, of_kafka("UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _TRANSPORT _ALL_BROKERS_DOWN _MSG_TIMED_OUT")),
    (RETRY, RETRY, of_kafka("_MAX_POLL_EXCEEDED NOT_ENOUGH_REPLICAS REBALANCE_IN_PROGRESS")),
    (DEAD_LETTER, SUSPEND, instances("RaiseException ProgramLimitExceeded DivisionByZero InvalidTextRepresentation")),
    (DEAD_LETTER, SUSPEND, instances("UniqueViolation CardinalityViolation StatementTooComplex AssertFailure")),
    (FATAL, SUSPEND, instances("InsufficientPrivilege UndefinedTable UndefinedColumn UndefinedFunction SyntaxError")),
    (FATAL, SUSPEND, [pg.DatatypeMismatch("x"), psycopg.Error("x"), *instances("ComposeError IndexingError", errors)]),
    (FATAL, SUSPEND, [*map(api_error, (400, 404, 409, 413))]),
    (FATAL, FATAL, of_kafka("_AUTHENTICATION _INVALID_ARG TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED")),
    (FATAL, FATAL, of_kafka("SASL_AUTHENTICATION_FAILED")),
    (FATAL, FATAL, [*instances("ConfigError SourceError TopicError", errors), ValueError("x")]),
    (SUSPEND, SUSPEND, [DocumentError("its column is gone", document="post", revision=3)]),
]


@pytest.mark.parametrize(
    ("anywhere", "at_work", "error"),
    [(anywhere, at_work, error) for anywhere, at_work, found in DECISIONS for error in found],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_one_decision(anywhere: Action, at_work: Action, error: Exception) -> None:
    """In the work for a document, what its own SQL and its own index say suspends it; all else stays what it is."""
    assert decide(error) is anywhere
    with pytest.raises(DocumentError if at_work is SUSPEND else type(error)) as raised, at_work_for("post", 7):
        raise error
    assert decide(raised.value) is at_work
    assert (raised.value is error) is (at_work is not SUSPEND or isinstance(error, DocumentError))
    assert (explain(raised.value) is None) is isinstance(error, ValueError)  # a defect of ours is not dressed up


def test_a_row_that_is_found_out_is_dead_lettered() -> None:
    """Where the caller halves the batch until the row is alone, bad data suspends nothing."""
    with pytest.raises(pg.DivisionByZero), at_work_for("post", 7, isolates=True):
        raise pg.DivisionByZero
    with pytest.raises(DocumentError), at_work_for("post", 7, isolates=True):
        raise pg.UndefinedColumn


@pytest.mark.parametrize("name", TOO_MUCH_KINDS)
def test_what_takes_too_much_may_be_due_to_some_rows(name: str) -> None:
    """A caller that halves what it asks for gets the error itself, also as the cause of a definition's error."""
    error = getattr(pg, name)("what happened")
    with pytest.raises(type(error)), at_work_for("post", 7, isolates=True, in_time=True):
        raise error
    with pytest.raises(DocumentError) as raised, at_work_for("post", 7, in_time=True):
        raise error
    assert is_of_some_rows(error)
    assert is_of_some_rows(raised.value)
    assert not is_of_some_rows(DocumentError("its column is gone", document="post", revision=3))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg.OperationalError("connection refused"), True),
        (psycopg.OperationalError("FATAL: the database system is starting up"), True),
        (psycopg.OperationalError("FATAL: sorry, too many clients already"), False),
        (psycopg.OperationalError('FATAL: password authentication failed for user "x"'), False),
        (pg.AdminShutdown("terminating connection"), True),
        (pg.DiskFull("no space"), False),
        (elasticsearch.ConnectionTimeout("timed out"), True),
        (api_error(429), False),
        (kafka_error("_TIMED_OUT"), True),
        (kafka_error("NOT_ENOUGH_REPLICAS"), False),
    ],
)
def test_only_a_server_that_does_not_answer_is_away(error: Exception, *, expected: bool) -> None:
    """What it refuses is trouble of those whom it refuses."""
    assert is_away(error) is expected


@pytest.mark.parametrize(
    ("expected", "status", "kind", "reason"),
    [
        *((DEAD_LETTER, status, "any_exception", "") for status in (400, 404, 413)),
        *((RETRY, status, "any_exception", "") for status in (408, 429, 500, 502, 503, 504)),
        *((SUSPEND, status, "any_exception", "") for status in (401, 403)),
        # An index that takes nothing is no document's fault; one that a pipeline needs may be one document's.
        (SUSPEND, 404, "index_not_found_exception", "no such index [a-000001-syncer-write-2]"),
        (DEAD_LETTER, 404, "index_not_found_exception", "no such index [.enrich-b]"),
        (SUSPEND, 400, "index_closed_exception", ""),
        (SUSPEND, 503, "unavailable_shards_exception", ""),
        (SUSPEND, 403, "cluster_block_exception", "index [a] blocked by: [FORBIDDEN/8/index write (api)];"),
        # A cluster made read-only while a request was on its way is waited for.
        (RETRY, 403, "cluster_block_exception", "index [a] blocked by: [FORBIDDEN/6/cluster read-only (api)];"),
    ],
)
def test_what_becomes_of_one_document_of_a_bulk_request(expected: Action, status: int, kind: str, reason: str) -> None:
    """Only a document that is itself at fault is dead-lettered."""
    assert decide_item(status, kind, reason) is expected


CAUSES: list[tuple[str, Exception, list[Exception]]] = [
    (
        "Run: syncer migrate",
        pg.UndefinedTable('relation "syncer.outbox" does not exist'),
        [
            pg.UndefinedTable('relation "syncers" does not exist'),
            pg.UndefinedTable('relation "shop.syncer_orders" does not exist'),
            pg.UndefinedFunction("function my_syncer() does not exist"),
        ],
    ),
    (
        "pg_hba.conf",
        psycopg.OperationalError('FATAL:  password authentication failed for user "x"'),
        [
            psycopg.OperationalError("FATAL:  sorry, too many clients already"),
            psycopg.OperationalError("FATAL:  the database system is starting up"),
            psycopg.OperationalError('FATAL:  too many connections for role "x"'),
        ],
    ),
    (
        "the role of each duty",
        refusal(403, "security_exception", "action [indices:admin/create] is unauthorized for user [x]"),
        [
            refusal(403, "security_exception", "current license is non-compliant for [inference]"),
            refusal(403, "snapshot_exception", "repository is read-only"),
            refusal(403, "cluster_block_exception", "index [x] blocked by: [FORBIDDEN/9/index metadata (api)];"),
        ],
    ),
    (
        "the role of each duty",
        refusal(
            403,
            "security_exception",
            "no permissions for [indices:admin/create, indices:admin/aliases] and User "
            "[name=x, backend_roles=[], requestedTenant=null]",
        ),
        [
            refusal(403, "security_exception", "Open Distro not initialized"),
            refusal(403, "AccessDenied", "User: x is not authorized to perform es:ESHttpPut"),
            refusal(403, "cluster_block_exception", "index [x] blocked by: [FORBIDDEN/8/index write (api)];"),
        ],
    ),
    (
        "To make it: syncer apply",
        refusal(404, "index_not_found_exception", "no such index [x]"),
        [
            refusal(404, "resource_not_found_exception", "Inference endpoint not found [x]"),
            refusal(404, "resource_not_found_exception", "index matching [x] not found"),
            refusal(404, "aliases_not_found_exception", "aliases [x] missing"),
        ],
    ),
    (
        "heap",
        refusal(429, "circuit_breaking_exception", "[parent] Data too large"),
        [
            refusal(429, "status_exception", "Received a rate limit status code for [x]"),
            refusal(429, "cluster_block_exception", "disk usage exceeded flood-stage watermark"),
            refusal(429, "too_many_requests", "quota"),
        ],
    ),
    (
        "logs of its nodes",
        refusal(503, "cluster_block_exception", "blocked by: [SERVICE_UNAVAILABLE/2/no master];"),
        [refusal(503, "unavailable_shards_exception", "primary shard is not active")],
    ),
    (
        "see the logs of its nodes",
        refusal(503, "master_not_discovered_exception", None),
        [refusal(503, "any_exception", None)],
    ),
    (
        "blocks.write is true",
        refusal(403, "cluster_block_exception", "index [x] blocked by: [FORBIDDEN/8/index write (api)];"),
        [
            refusal(403, "cluster_block_exception", "blocked by: [FORBIDDEN/6/cluster read-only (api)];"),
            refusal(403, "cluster_block_exception", "index [x] blocked by: [FORBIDDEN/7/index read (api)];"),
            refusal(403, "cluster_block_exception", "index [x] blocked by: [FORBIDDEN/11/x];"),
        ],
    ),
    (
        "broker is up",
        kafka_error("_TRANSPORT"),
        [*map(kafka_error, ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "POLICY_VIOLATION"))],
    ),
]


@pytest.mark.parametrize(("hint", "cause", "others"), CAUSES, ids=[hint for hint, _, _ in CAUSES])
def test_a_hint_that_claims_a_cause_is_given_for_this_cause_alone(
    hint: str, cause: Exception, others: list[Exception]
) -> None:
    """Rule: another cause with the same class, status or code gets another hint, or none."""
    explained = explain(cause)
    assert explained is not None
    assert hint in explained.hint
    assert "None" not in explained.message  # some errors have no reason
    for another in others:
        explained = explain(another)
        assert explained is not None
        assert hint not in explained.hint, explained


def test_an_action_is_repeated_with_pauses_that_grow() -> None:
    """Until it succeeds, is told to stop, or fails for good: then its error comes out unchanged."""
    failures: list[Exception] = [*[psycopg.OperationalError("away")] * 6, pg.DivisionByZero("x")]
    pauses = list[float]()

    def action() -> None:
        raise failures.pop(0)

    with capture_logs(), pytest.raises(pg.DivisionByZero):
        retry(action, pause=pauses.append, component="relay")
    assert (len(pauses), failures) == (6, [])
    assert all(longer > shorter / 2 for shorter, longer in zip(pauses, pauses[2:], strict=False))
    stop = Stop()
    stop.request()
    failures = [psycopg.OperationalError("away")]
    with capture_logs(), pytest.raises(Stopping):
        retry(action, pause=stop.pause, component="relay")
    assert failures == []


QUOTING = (
    # As Elasticsearch 8.16 words them; what has 4815 in it is of the document.
    '[1:18] Numeric value (48151623) out of range of Java short\n at [Source: (byte[])"{"n":48151623}"; line: 1]',
    "failed to parse field [b] of type [boolean]. Preview of field's value: '4815'x]': to [4815'x]]",
    "[1:31] failed to parse field [geo] of type [geo_point]: illegal latitude value [4.8151623E7] for geo",
    "[1:12] failed to parse: The [cosine] similarity does not support it. Preview of invalid vector: [4815.0, 0.0]",
    "[1:9] failed to parse: Illegal input [4815] [23] UTF-16 codepoint [0x1f] at position 0 is a reserved character",
    "failed to parse field [r] of type [integer_range] in document with id 1: min value (48151623) is above (1)",
)


@pytest.mark.parametrize("reason", QUOTING, ids=range(len(QUOTING)))
def test_a_reason_is_kept_without_what_it_quotes_of_the_document(reason: str) -> None:
    """What is wrong, and with which field, stays."""
    shown = without_values(reason)
    assert not re.search(r"4\.?815", shown), shown
    assert shown[:20] == reason[:20]
    assert without_values("mapping set to strict, [a] is not allowed") == "mapping set to strict, [a] is not allowed"
