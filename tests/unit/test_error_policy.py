"""Every error has one decision, and one sentence for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import elasticsearch
import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from hypothesis import given, strategies as st
from psycopg import errors as pg
from structlog.testing import capture_logs

from syncer.base import error_policy, errors
from syncer.base.error_policy import Action, at_work_for, decide, decide_item, explain
from syncer.base.errors import (
    DeadLetteringError,
    DocumentError,
    LossError,
    RestoringError,
    SuspendedError,
    SyncerError,
    UnavailableError,
)
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.retry import Backoff, retry

NODE = NodeConfig("http", "search", 9200)

API_ERRORS: dict[int, type[elasticsearch.ApiError]] = {
    400: elasticsearch.BadRequestError,
    401: elasticsearch.AuthenticationException,
    403: elasticsearch.AuthorizationException,
    404: elasticsearch.NotFoundError,
    409: elasticsearch.ConflictError,
}


def api_error(status: int, reason: str = "because") -> elasticsearch.ApiError:
    """An answer of Elasticsearch, as its client raises it."""
    meta = ApiResponseMeta(status=status, http_version="1.1", headers=HttpHeaders({}), duration=0.1, node=NODE)
    body = {"error": {"type": "some_exception", "reason": reason}, "status": status}
    return API_ERRORS.get(status, elasticsearch.ApiError)(message="some_exception", meta=meta, body=body)


def kafka_error(code: int) -> KafkaException:
    """An error as confluent_kafka raises it."""
    return KafkaException(KafkaError(code))


POSTGRES = {
    pg.SerializationFailure: Action.RETRY,
    pg.DeadlockDetected: Action.RETRY,
    pg.QueryCanceled: Action.RETRY,
    pg.LockNotAvailable: Action.RETRY,
    pg.ObjectInUse: Action.RETRY,
    pg.AdminShutdown: Action.RETRY,
    pg.CrashShutdown: Action.RETRY,
    pg.CannotConnectNow: Action.RETRY,
    pg.TooManyConnections: Action.RETRY,
    pg.DiskFull: Action.RETRY,
    pg.OutOfMemory: Action.RETRY,
    pg.IdleInTransactionSessionTimeout: Action.RETRY,
    pg.RaiseException: Action.DEAD_LETTER,
    pg.ProgramLimitExceeded: Action.DEAD_LETTER,
    pg.DivisionByZero: Action.DEAD_LETTER,
    pg.InvalidTextRepresentation: Action.DEAD_LETTER,
    pg.NumericValueOutOfRange: Action.DEAD_LETTER,
    pg.UniqueViolation: Action.DEAD_LETTER,
    pg.CheckViolation: Action.DEAD_LETTER,
    pg.CardinalityViolation: Action.DEAD_LETTER,
    pg.SnapshotTooOld: Action.RETRY,
    pg.StatementTooComplex: Action.DEAD_LETTER,
    pg.ExternalRoutineException: Action.DEAD_LETTER,
    pg.AssertFailure: Action.DEAD_LETTER,
    pg.NoDataFound: Action.DEAD_LETTER,
    pg.InsufficientPrivilege: Action.FATAL,
    pg.UndefinedTable: Action.FATAL,
    pg.UndefinedColumn: Action.FATAL,
    pg.UndefinedFunction: Action.FATAL,
    pg.SyntaxError: Action.FATAL,
    pg.FeatureNotSupported: Action.FATAL,
    psycopg.OperationalError: Action.RETRY,
    psycopg.InterfaceError: Action.RETRY,
    psycopg.Error: Action.FATAL,
}


@pytest.mark.parametrize(("kind", "action"), POSTGRES.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_what_postgres_raises(kind: type[psycopg.Error], action: Action) -> None:
    """Each class of SQLSTATE has the decision that its meaning asks for."""
    assert decide(kind("what happened")) is action


STATUSES = {
    400: Action.FATAL,
    401: Action.RETRY,
    403: Action.RETRY,
    404: Action.FATAL,
    408: Action.RETRY,
    409: Action.FATAL,
    413: Action.FATAL,
    429: Action.RETRY,
    500: Action.RETRY,
    502: Action.RETRY,
    503: Action.RETRY,
    504: Action.RETRY,
}


@pytest.mark.parametrize(("status", "action"), STATUSES.items())
def test_what_elasticsearch_answers(status: int, action: Action) -> None:
    """An overloaded server is asked again, as is one that no longer takes the login; one that refuses is not."""
    assert decide(api_error(status)) is action


@pytest.mark.parametrize("status", [200, 302, 400, 401, 403, 404, 405, 500, 502])
def test_what_something_before_elasticsearch_answers_is_waited_out(status: int) -> None:
    """A load balancer's page says nothing of an index, nor of a document, whatever its status."""
    meta = ApiResponseMeta(status=status, http_version="1.1", headers=HttpHeaders({}), duration=0.1, node=NODE)
    kind = elasticsearch.UnsupportedProductError if status == 200 else API_ERRORS.get(status, elasticsearch.ApiError)
    error = kind(message="<html>", meta=meta, body="<html>")
    assert decide(error) is Action.RETRY
    with pytest.raises(kind):
        in_work(error)
    said = explain(error)
    assert said is not None
    assert "not Elasticsearch" in said.message.replace("Not", "not")


TRANSPORT = {
    "connection": elasticsearch.ConnectionError("refused"),
    "timeout": elasticsearch.ConnectionTimeout("too long"),
    "tls": elasticsearch.SSLError("certificate"),
    "serialization": elasticsearch.SerializationError("not JSON"),
}


@pytest.mark.parametrize("error", TRANSPORT.values(), ids=TRANSPORT.keys())
def test_what_the_way_to_elasticsearch_does(error: elasticsearch.TransportError) -> None:
    """Trouble on the way is retried."""
    assert decide(error) is Action.RETRY


KAFKA = {
    "UNKNOWN_TOPIC_OR_PART": Action.RETRY,
    "_UNKNOWN_TOPIC": Action.RETRY,
    "UNKNOWN_TOPIC_ID": Action.RETRY,
    "_AUTO_OFFSET_RESET": Action.RETRY,
    "_AUTHENTICATION": Action.FATAL,
    "MSG_SIZE_TOO_LARGE": Action.FATAL,
    "RECORD_LIST_TOO_LARGE": Action.FATAL,
    "_INVALID_ARG": Action.FATAL,
    "TOPIC_AUTHORIZATION_FAILED": Action.FATAL,
    "GROUP_AUTHORIZATION_FAILED": Action.FATAL,
    "CLUSTER_AUTHORIZATION_FAILED": Action.FATAL,
    "SASL_AUTHENTICATION_FAILED": Action.FATAL,
    "_TRANSPORT": Action.RETRY,
    "_ALL_BROKERS_DOWN": Action.RETRY,
    "_TIMED_OUT": Action.RETRY,
    "_MSG_TIMED_OUT": Action.RETRY,
    "_MAX_POLL_EXCEEDED": Action.RETRY,
    "NOT_ENOUGH_REPLICAS": Action.RETRY,
    "LEADER_NOT_AVAILABLE": Action.RETRY,
    "REBALANCE_IN_PROGRESS": Action.RETRY,
    "COORDINATOR_LOAD_IN_PROGRESS": Action.RETRY,
}


@pytest.mark.parametrize(("name", "action"), KAFKA.items(), ids=KAFKA.keys())
def test_what_kafka_raises(name: str, action: Action) -> None:
    """A broker that is away is waited for, and what is gone is made up for; a right that is missing is neither."""
    assert decide(kafka_error(getattr(KafkaError, name))) is action


WAITED_FOR = (DocumentError, SuspendedError, DeadLetteringError, LossError, RestoringError, UnavailableError)
OURS = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, SyncerError) and one not in WAITED_FOR
]


@pytest.mark.parametrize("kind", OURS, ids=lambda one: one.__name__)
def test_what_syncer_raises_on_purpose_is_not_repeated(kind: type[SyncerError]) -> None:
    """An error that already says what to do suspends, and is explained by itself."""
    error = kind("what happened", hint="what to do")
    assert decide(error) is Action.FATAL
    assert explain(error) is error


IN_WORK: dict[str, tuple[Exception, Action]] = {
    "away": (psycopg.OperationalError("away"), Action.RETRY),
    "deadlock": (pg.DeadlockDetected("deadlock"), Action.RETRY),
    "data": (pg.DivisionByZero("division by zero"), Action.SUSPEND),
    "column": (pg.UndefinedColumn("column p.title does not exist"), Action.SUSPEND),
    "table": (pg.UndefinedTable("relation public.posts does not exist"), Action.SUSPEND),
    "function": (pg.UndefinedFunction("operator does not exist"), Action.SUSPEND),
    "type": (pg.DatatypeMismatch("types cannot be matched"), Action.SUSPEND),
    "privilege": (pg.InsufficientPrivilege("permission denied for table posts"), Action.SUSPEND),
    "twice": (errors.ComposeError("an id more than once"), Action.SUSPEND),
    "answer": (errors.IndexingError("Elasticsearch answered 3 items"), Action.SUSPEND),
    "shard": (UnavailableError("not every shard"), Action.RETRY),
    "cleared": (DeadLetteringError("no dead letter"), Action.RETRY),
    "half restored": (RestoringError("not whole"), Action.RETRY),
    "bad_request": (api_error(400), Action.SUSPEND),
    "index": (api_error(404), Action.SUSPEND),
    "overloaded": (api_error(429), Action.RETRY),
    "login": (api_error(401), Action.RETRY),
    "right": (api_error(403), Action.RETRY),
    "search_away": (elasticsearch.ConnectionError("refused"), Action.RETRY),
    "kafka": (kafka_error(KafkaError._AUTHENTICATION), Action.FATAL),
    "topic": (errors.TopicError("not a change"), Action.FATAL),
    "defect": (ValueError("x"), Action.FATAL),
}


@pytest.mark.parametrize(("error", "action"), IN_WORK.values(), ids=IN_WORK.keys())
def test_what_is_met_in_the_work_for_a_document(error: Exception, action: Action) -> None:
    """What its own SQL and its own index say suspends a document and tells what to do; all else stays what it is."""
    with pytest.raises(type(error) if action is not Action.SUSPEND else DocumentError) as raised:
        in_work(error)
    assert decide(raised.value) is action
    if isinstance(raised.value, DocumentError):
        assert (raised.value.document, raised.value.revision) == ("post", 7)
        assert raised.value.__cause__ is error
        said = explain(raised.value)
        assert said is not None
        assert said.hint or said.message == str(error)


def test_what_elasticsearch_says_is_one_line() -> None:
    """A reason stands in tables and sentences: its line breaks and tabs are spaces."""
    said = "Mapper for [title] conflicts with existing mapper:\n\tCannot update parameter [analyzer]"
    assert error_policy.reason(api_error(400, said)) == " ".join(said.split())


def test_a_row_that_is_found_out_is_dead_lettered() -> None:
    """Where the caller halves the batch until the row is alone, bad data suspends nothing."""
    with pytest.raises(pg.DivisionByZero):
        in_work(pg.DivisionByZero("division by zero"), isolates=True)
    with pytest.raises(DocumentError):
        in_work(pg.UndefinedColumn("column p.title does not exist"), isolates=True)


def in_work(error: Exception, *, isolates: bool = False) -> None:
    """Meet an error in a document's work."""
    with at_work_for("post", 7, isolates=isolates):
        raise error


def test_a_document_error_stays_what_it_is() -> None:
    """An error that says already which document suspends is not said again in other words."""
    error = DocumentError("its column is gone", document="post", revision=3)
    with pytest.raises(DocumentError) as raised:
        in_work(error)
    assert raised.value is error


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), AssertionError(), KeyboardInterrupt()])
def test_what_nobody_foresaw_suspends_and_has_no_words(error: BaseException) -> None:
    """A defect of ours is neither repeated nor dressed up."""
    assert decide(error) is Action.FATAL
    assert explain(error) is None


ITEMS = {
    400: Action.DEAD_LETTER,
    413: Action.DEAD_LETTER,
    401: Action.SUSPEND,
    403: Action.SUSPEND,
    404: Action.SUSPEND,
    408: Action.RETRY,
    429: Action.RETRY,
    500: Action.RETRY,
    502: Action.RETRY,
    503: Action.RETRY,
    504: Action.RETRY,
}


@pytest.mark.parametrize(("status", "action"), ITEMS.items())
def test_what_becomes_of_one_document_of_a_bulk_request(status: int, action: Action) -> None:
    """Only a document that is itself at fault is dead-lettered."""
    assert decide_item(status, "some_exception") is action


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "index_closed_exception"), (503, "unavailable_shards_exception"), (429, "cluster_block_exception")],
)
def test_an_index_that_takes_nothing_is_no_document_s_fault(status: int, kind: str) -> None:
    """Its answer to each document means all of them."""
    assert decide_item(status, kind) is Action.SUSPEND


def test_a_cluster_made_read_only_while_a_request_was_on_its_way_is_waited_for() -> None:
    """One index that is blocked by hand suspends its document; the whole cluster suspends none."""
    cluster = "index [post-000001] blocked by: [FORBIDDEN/6/cluster read-only (api)];"
    index = "index [post-000001] blocked by: [FORBIDDEN/8/index write (api)];"
    assert decide_item(403, "cluster_block_exception", cluster) is Action.RETRY
    assert decide_item(403, "cluster_block_exception", index) is Action.SUSPEND


SAID: dict[str, tuple[BaseException, type[SyncerError], tuple[str, ...]]] = {
    "postgres_away": (
        psycopg.OperationalError("connection refused"),
        errors.SourceError,
        ("cannot be reached", "SYNCER_POSTGRES_DSN"),
    ),
    "privilege": (pg.InsufficientPrivilege("permission denied"), errors.SourceError, ("permission denied", "role")),
    "schema": (pg.UndefinedTable('relation "syncer.document" does not exist'), errors.SourceError, ("syncer migrate",)),
    "column": (pg.UndefinedColumn("column p.title does not exist"), errors.ComposeError, ("p.title", "syncer apply")),
    "elasticsearch_away": (
        elasticsearch.ConnectionError("refused"),
        errors.IndexingError,
        ("cannot be reached", "refused", "SYNCER_ELASTICSEARCH_URL"),
    ),
    "login": (api_error(401, "missing credentials"), errors.IndexingError, ("missing credentials", "API_KEY")),
    "right": (api_error(403, "not granted"), errors.IndexingError, ("not granted", "role")),
    "index": (api_error(404, "no such index [blog]"), errors.IndexingError, ("[blog]", "syncer apply")),
    "answer": (api_error(400, "too many clauses"), errors.IndexingError, ("400", "too many clauses")),
    "topic": (kafka_error(KafkaError._UNKNOWN_TOPIC), errors.TopicError, ("no such topic", "creates it")),
    "broker": (
        kafka_error(KafkaError._ALL_BROKERS_DOWN),
        errors.TopicError,
        ("Kafka", "SYNCER_KAFKA_BOOTSTRAP_SERVERS"),
    ),
}


@pytest.mark.parametrize(("error", "kind", "says"), SAID.values(), ids=SAID.keys())
def test_what_a_person_is_told(error: BaseException, kind: type[SyncerError], says: tuple[str, ...]) -> None:
    """An expected error becomes one of ours, with what happened and what to do."""
    said = explain(error)
    assert type(said) is kind
    for words in says:
        assert words in f"{said.message}\n{said.hint}"


# Backoff


@given(
    first=st.floats(min_value=0.001, max_value=10),
    longest=st.floats(min_value=0.001, max_value=100),
    pauses=st.integers(min_value=1, max_value=60),
)
def test_a_pause_is_within_half_of_its_limit(first: float, longest: float, pauses: int) -> None:
    """The limit doubles up to the longest; a pause is never below half of it, nor above it."""
    backoff = Backoff(first_seconds=first, longest_seconds=longest)
    for attempt in range(pauses):
        limit = min(longest, first * 2**attempt)
        assert limit / 2 <= backoff.next_seconds() <= limit


def test_pauses_differ() -> None:
    """Two that failed together do not come back together."""
    pauses = {Backoff(first_seconds=1).next_seconds() for _ in range(50)}
    assert len(pauses) > 40


def test_a_pause_never_overflows() -> None:
    """An outage of days ends in the longest pause, not in an error."""
    backoff = Backoff()
    pauses = [backoff.next_seconds() for _ in range(5000)]
    assert max(pauses) <= backoff.longest_seconds


# Persist


class Failing:
    """Raises each of these errors once, then succeeds."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0

    def __call__(self) -> str:
        """Fail or succeed."""
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"


def silent(_: float) -> None:
    """Wait for nothing."""


def logged(action: Callable[[], Any], **keywords: Any) -> tuple[Any, list[Any]]:
    """What retry returned, and what it logged."""
    with capture_logs() as logs:
        return retry(action, pause=silent, component="relay", **keywords), logs


def test_success_is_silent() -> None:
    """What succeeds at once is done once and logged not at all."""
    action = Failing()
    assert logged(action) == ("done", [])
    assert action.calls == 1


def test_the_same_trouble_is_logged_once_then_recovered_once() -> None:
    """An outage is two lines, however many attempts it lasts."""
    action = Failing(*(elasticsearch.ConnectionError("refused") for _ in range(7)))
    result, logs = logged(action)
    assert result == "done"
    assert action.calls == 8
    assert [(one["event"], one["log_level"], one["component"], one["attempts"]) for one in logs] == [
        ("component.retried", "warning", "relay", 1),
        ("component.recovered", "info", "relay", 7),
    ]
    assert "Elasticsearch cannot be reached" in logs[0]["error"]
    assert logs[1]["outage_seconds"] >= 0


def test_another_trouble_is_logged_too() -> None:
    """A new kind of trouble within an outage has a line of its own."""
    action = Failing(psycopg.OperationalError("starting up"), psycopg.OperationalError("starting up"), api_error(503))
    _, logs = logged(action)
    assert [one["event"] for one in logs] == ["component.retried", "component.retried", "component.recovered"]
    assert [one["attempts"] for one in logs] == [1, 3, 3]


@pytest.mark.parametrize("error", [pg.DivisionByZero("x"), pg.UndefinedTable("x"), ValueError("x")])
def test_what_is_not_to_be_retried_is_raised_as_it_is(error: Exception) -> None:
    """DEAD_LETTER and FATAL come out unchanged and unlogged: whoever asked decides."""
    action = Failing(error)
    with capture_logs() as logs, pytest.raises(type(error)) as raised:
        retry(action, pause=silent, component="relay")
    assert raised.value is error
    assert logs == []
    assert action.calls == 1


def test_pauses_grow() -> None:
    """Between attempts it waits, longer each time, through the pause that it was given."""
    pauses: list[float] = []
    retry(Failing(*(api_error(429) for _ in range(5))), pause=pauses.append, component="relay")
    assert len(pauses) == 5
    assert all(longer > shorter / 2 for shorter, longer in zip(pauses, pauses[2:], strict=False))
    assert pauses[4] > pauses[0]


def test_a_stop_ends_the_wait() -> None:
    """A component that is told to stop does not wait for a server to come back."""
    stop = Stop()
    stop.request()
    action = Failing(psycopg.OperationalError("away"))
    with capture_logs(), pytest.raises(Stopping):
        retry(action, pause=stop.pause, component="relay")
    assert action.calls == 1
