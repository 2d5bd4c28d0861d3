"""The documents in Elasticsearch: bulk writes; and the epoch's record. What it holds is read by `syncer.holdings`.

Guarantees: writes are whole documents or deletes, each with an external version, so that a document never
goes back; a version conflict is a success, since something at least as new is there or on its way, unless the database
was set back, which is what the greatest of those versions tells; writes name an alias and require it, so that a late
write never re-creates an index that was dropped. Errors are raised as the client raises them; what they mean is said by
`syncer.policy`.

Elasticsearch keeps versions per shard and id. So a document with a ``_routing``, which may have been on any shard
before, is written to all of them: whole to its own, and as a delete with the same version to each of the others. Then
every shard sees all states of every document, ordered by version, and no copy stays behind where it once was.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NamedTuple, cast
from uuid import UUID

import elasticsearch
from elasticsearch import Elasticsearch
from elasticsearch.serializer import NdjsonSerializer

from syncer.errors import IndexingError, UnavailableError
from syncer.holdings import Holdings
from syncer.model import ID_BYTES_MAX, Composition, Target
from syncer.policy import is_by_another, reason
from syncer.settings import ElasticsearchSettings

OLDEST_SUPPORTED_VERSION = 8

_STATE_INDEX = "syncer-state"
_CREATED = 201
_BAD_REQUEST = 400
_NOT_FOUND = 404
_CONFLICT = 409
_TOO_LARGE = 413
_TOO_MANY = 429
_PRESSURE = re.compile(r"coordinating_operation_bytes=(\d+), max_coordinating\w*_bytes=(\d+)")
"""How Elasticsearch says what a bulk request takes, and the most that it has for all of them together."""
_WAIT_FOR_SHARD = "20s"
"""How long Elasticsearch keeps a request for a shard that is away; by itself, for as long as we wait for an answer."""
_REMEMBERED_SECONDS = 600
_REQUEST_BYTES_MIN = 64 * 1024
_OK_MIN, _OK_MAX = 200, 299
_BULK_TYPES = ("application/x-ndjson", "application/vnd.elasticsearch+x-ndjson")
_FOUND_VERSION = re.compile(r"current version \[(\d+)\]")
_ITEM_FIELDS = "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One document that Elasticsearch did not write.

    Args:
        composition: What was to be written.
        status: The HTTP status of the item.
        kind: Elasticsearch's name of the error.
        reason: Its sentence.
    """

    composition: Composition
    status: int
    kind: str
    reason: str


@dataclass(slots=True)
class BulkOutcome:
    """What became of the documents of one bulk write; each counts once, on however many shards it was written.

    Args:
        indexed: Written.
        deleted: Deleted, or known to be absent.
        has_created: Whether any of them was not there before, as far as Elasticsearch remembers.
        superseded: Not written, on some shard at least, since something at least as new was there.
        superseded_by: The greatest version that was there instead; 0 if Elasticsearch did not say.
        rejections: Not written, on some shard at least; one for each shard that refused.
    """

    indexed: int = 0
    deleted: int = 0
    superseded: int = 0
    has_created: bool = False
    superseded_by: int = 0
    rejections: list[Rejection] = field(default_factory=list)


def connect(settings: ElasticsearchSettings) -> Elasticsearch:
    """A client that does not retry: whether to try again is the policy's decision, not the transport's.

    Raises:
        IndexingError: The server is not Elasticsearch, or too old.
        elasticsearch.ApiError, elasticsearch.TransportError: It cannot be reached, or refuses the login.
    """
    options: dict[str, Any] = {}
    if settings.api_key:
        options["api_key"] = settings.api_key.get_secret_value()
    elif settings.username:
        password = settings.password.get_secret_value() if settings.password else ""
        options["basic_auth"] = (settings.username, password)
    if settings.ca_certs:
        options["ca_certs"] = str(settings.ca_certs)
    try:
        client = Elasticsearch(
            settings.url,
            request_timeout=settings.request_timeout_seconds,
            max_retries=0,
            retry_on_timeout=False,
            serializers={kind: _Prebuilt() for kind in _BULK_TYPES},
            **options,
        )
    except (ValueError, OSError) as error:
        # What the client says of an address may quote the password that is in it.
        raise IndexingError(
            "The client of Elasticsearch does not take elasticsearch.url, .ca_certs and the credentials as they are"
            + (f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""),
            hint="As in: http://127.0.0.1:9200 or https://search:9200, with a user and a password or an API key;\n"
            "ca_certs is a file of PEM certificates.",
        ) from None
    require_supported(client.info().body)
    return client


def require_supported(info: Mapping[str, Any]) -> None:
    """Refuse what is not Elasticsearch 8 or newer.

    Args:
        info: What ``GET /`` answers.

    Raises:
        IndexingError: It is another product, or too old.
    """
    version = info.get("version", {})
    number = str(version.get("number", "0"))
    product = version.get("distribution", "elasticsearch")
    if product != "elasticsearch":
        raise IndexingError(
            f"The server is {product} {number}, not Elasticsearch",
            hint=f"syncer needs Elasticsearch {OLDEST_SUPPORTED_VERSION} or newer. Check elasticsearch.url.",
        )
    if int(number.split(".", maxsplit=1)[0]) < OLDEST_SUPPORTED_VERSION:
        raise IndexingError(
            f"Elasticsearch {number} is not supported",
            hint=f"syncer needs Elasticsearch {OLDEST_SUPPORTED_VERSION} or newer. Upgrade the server.",
        )


class _Prebuilt(NdjsonSerializer):
    """Sends a bulk body that is bytes already as it is, where the client would copy it twice."""

    def dumps(self, data: Any) -> bytes:
        return data if isinstance(data, bytes) else super().dumps(data)


class Index:
    """What syncer does with Elasticsearch. Safe to share between threads, as the client is.

    Args:
        client: From `connect`.
        bulk_bytes_max: How large a request may be, if Elasticsearch does not take less.

    Attributes:
        holdings: What is there to read.
    """

    def __init__(self, client: Elasticsearch, *, bulk_bytes_max: int) -> None:
        self._client = client
        self._requests = _Requests(bulk_bytes_max)
        self.holdings = Holdings(client)

    # Writing

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write documents to one target, in requests of bounded size.

        A document that moves to another shard and is rejected there is gone from where it was.

        Raises:
            elasticsearch.ApiError, elasticsearch.TransportError: A request failed as a whole. What went before
                may have been written; writing it again is harmless.
        """
        outcome = BulkOutcome()
        for part in self._parts(self._tasks(target, compositions, outcome)):
            self._write_part(target, part, outcome)
        return outcome

    def _tasks(self, target: Target, compositions: Iterable[Composition], outcome: BulkOutcome) -> Iterator[_Task]:
        for one in compositions:
            if _has_valid_id(one, outcome):
                elsewhere = () if one.routing is None else self._elsewhere(target, one)
                yield _Task(one, 1 + len(elsewhere), _lines(one, elsewhere))

    def _elsewhere(self, target: Target, composition: Composition) -> tuple[str, ...]:
        """A routing value for each other shard that may hold a copy."""
        return self.holdings.shards(target).others(composition.place.routing)

    def _parts(self, tasks: Iterable[_Task]) -> Iterator[list[_Task]]:
        part: list[_Task] = []
        size = 0
        for task in tasks:
            length = len(task.lines)
            if part and size + length > self._requests.bytes:
                yield part
                part, size = [], 0
            part.append(task)
            size += length
        if part:
            yield part

    def _write_part(self, target: Target, part: list[_Task], outcome: BulkOutcome) -> None:
        body = b"".join([task.lines for task in part])
        try:
            response = self._client.bulk(
                index=target.write_alias,
                operations=cast("Any", body),  # the client sends bytes as they are
                require_alias=True,
                filter_path=_ITEM_FIELDS,
                timeout=_WAIT_FOR_SHARD,
            )
        except elasticsearch.ApiError as error:
            if not _never_fits(error, len(body)) or (len(part) == 1 and _is_of_a_breaker(error)):
                raise
            self._write_smaller(target, part, outcome, size=len(body))
            return
        items = response.body.get("items", []) if isinstance(response.body, dict) else []
        operations = sum([task.operations for task in part])
        if len(items) != operations:
            raise UnavailableError(
                f"Elasticsearch answered {len(items)} items to a bulk request of {operations}",
                hint="Is something before Elasticsearch that changes its answers?",
            )
        outcome.has_created = outcome.has_created or any(_status(item) == _CREATED for item in items)
        if response.body.get("errors") is False:
            _count_done(part, outcome)
            return
        answers = (next(iter(item.values())) for item in items)
        for task in part:
            _judge(task.composition, list(islice(answers, task.operations)), outcome)

    def _write_smaller(self, target: Target, part: list[_Task], outcome: BulkOutcome, *, size: int) -> None:
        """Write in two requests what is too large for one; a document too large by itself is rejected."""
        if len(part) == 1:
            said = (
                f"a request of {size} bytes with nothing but this document is larger than Elasticsearch takes: "
                "http.max_content_length, or what a proxy before it or indexing_pressure.memory.limit says"
            )
            outcome.rejections.append(
                Rejection(composition=part[0].composition, status=_TOO_LARGE, kind="too_large", reason=said)
            )
            return
        self._requests.refuse(size)
        middle = len(part) // 2
        self._write_part(target, part[:middle], outcome)
        self._write_part(target, part[middle:], outcome)

    # The epoch and a version that was drawn, where no restore of Postgres can take them back

    def read_epoch(self, installation: UUID) -> int:
        """The greatest epoch that was written for this installation; 0 if none was."""
        return self._read_state("epoch", installation)

    def read_drawn(self, installation: UUID) -> int:
        """The greatest version that `write_drawn` was given for this installation; 0 if it was given none."""
        return self._read_state("drawn", installation)

    def _read_state(self, name: str, installation: UUID) -> int:
        try:
            found = self._client.get(index=_STATE_INDEX, id=f"{name}-{installation}")
        except elasticsearch.NotFoundError as error:
            if is_by_another(error):  # who knows nothing of epochs
                raise
            return 0
        return int(found.body["_source"][name])

    def write_drawn(self, installation: UUID, version: int) -> None:
        """Keep a version that was drawn, if no greater one is kept."""
        with suppress(elasticsearch.ConflictError):
            self._client.index(
                index=_STATE_INDEX,
                id=f"drawn-{installation}",
                version=version,
                version_type="external",
                document={"drawn": version},
            )

    def write_epoch(self, installation: UUID, epoch: int) -> None:
        """Write the epoch; its own version forbids that it goes back, and that two enter the same one.

        Raises:
            UnavailableError: It is there, or a greater one; whoever asks again finds that.
        """
        try:
            self._client.index(
                index=_STATE_INDEX,
                id=f"epoch-{installation}",
                version=epoch,
                version_type="external",
                document={"epoch": epoch},
            )
        except elasticsearch.ConflictError as error:
            raise UnavailableError(
                f"Another daemon has entered epoch {epoch}, or a later one", hint="It is tried again by itself."
            ) from error


class _Requests:
    """How large a request may be. Safe to share between threads.

    What is refused as a whole is written in halves, and those who come next begin with halves. For a while only: it may
    have been something before Elasticsearch that is gone, or a setting that somebody mends.

    Args:
        wanted: How large, if all is well.
        clock: In seconds.
    """

    def __init__(self, wanted: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._wanted = wanted
        self._clock = clock
        self._found = wanted, -float(_REMEMBERED_SECONDS)

    @property
    def bytes(self) -> int:
        """As far as is known."""
        found, at = self._found
        return found if self._clock() - at < _REMEMBERED_SECONDS else self._wanted

    def refuse(self, size: int) -> None:
        """A request of this size was refused, and was not one document alone."""
        self._found = min(self.bytes, max(_REQUEST_BYTES_MIN, size // 2)), self._clock()


def _never_fits(error: elasticsearch.ApiError, size: int) -> bool:
    """Whether a request of so many bytes was refused for its size, and will be as long as no setting changes."""
    if error.status_code == _TOO_LARGE:
        return True
    if error.status_code != _TOO_MANY or is_by_another(error):
        return False
    pressure = _PRESSURE.search(reason(error))
    if pressure is not None:
        return int(pressure[1]) > int(pressure[2])
    breaker = error.body["error"].get("bytes_limit")
    return breaker is not None and size > int(breaker)


def _is_of_a_breaker(error: elasticsearch.ApiError) -> bool:
    """Whether the limit is a circuit breaker's, which can be raised at any time: nothing is parked for that."""
    return "bytes_limit" in str(error.body)


class _Task(NamedTuple):
    """A document as a bulk request writes it; a tuple, since there is one for each document.

    Args:
        composition: What is written to its own shard.
        operations: To how many shards it is written, or deleted from.
        lines: Those operations, as the request has them.
    """

    composition: Composition
    operations: int
    lines: bytes


def _lines(one: Composition, elsewhere: Iterable[str]) -> bytes:
    """The lines of a bulk request that write a document, and delete it from the shards of these routing values."""
    meta = f'"_id":{_quoted(one.id)},"version":{one.version},"version_type":"external"'
    own = f'{meta},"routing":{_quoted(one.routing)}' if one.routing else meta
    # Version rule, on every other shard: it saw this version too, and as long as this wins it has no copy.
    deletes = "".join([f'{{"delete":{{{meta},"routing":{_quoted(routing)}}}}}\n' for routing in elsewhere]).encode()
    if one.source is None:
        return f'{{"delete":{{{own}}}}}\n'.encode() + deletes
    return b"%b%b\n%b" % (f'{{"index":{{{own}}}}}\n'.encode(), one.source, deletes)


def _has_valid_id(composition: Composition, outcome: BulkOutcome) -> bool:
    """Whether Elasticsearch takes the id; it would refuse the whole request for one that it does not."""
    if 1 <= len(composition.id.encode()) <= ID_BYTES_MAX:
        return True
    if composition.source is None:  # it has none of that id
        outcome.deleted += 1
        return False
    said = f"an id has 1 to {ID_BYTES_MAX} bytes"
    outcome.rejections.append(Rejection(composition=composition, status=_BAD_REQUEST, kind="invalid_id", reason=said))
    return False


def _count_done(part: Sequence[_Task], outcome: BulkOutcome) -> None:
    """Count documents of which every shard has taken all that it was asked to."""
    deleted = len([task for task in part if task.composition.source is None])
    outcome.deleted += deleted
    outcome.indexed += len(part) - deleted


def _judge(composition: Composition, items: Sequence[Mapping[str, Any]], outcome: BulkOutcome) -> None:
    """Count a document once, by what all shards that it was written to have answered."""
    rejections = [_rejection(composition, one) for one in items if not _is_done(one) and one["status"] != _CONFLICT]
    outcome.rejections += rejections
    if rejections:
        return
    if conflicts := [_found_version(one) for one in items if one["status"] == _CONFLICT]:
        outcome.superseded += 1
        outcome.superseded_by = max(outcome.superseded_by, *conflicts)
    elif composition.source is None:
        outcome.deleted += 1
    else:
        outcome.indexed += 1


def _status(item: Mapping[str, Any]) -> int:
    (answer,) = item.values()
    status: int = answer["status"]
    return status


def _found_version(item: Mapping[str, Any]) -> int:
    """The version that a conflict was with, as its sentence has it; 0 if it has none."""
    said = _FOUND_VERSION.search(str(item.get("error", {}).get("reason", "")))
    return int(said[1]) if said else 0


def _is_done(item: Mapping[str, Any]) -> bool:
    status = item["status"]
    return _OK_MIN <= status <= _OK_MAX or (status == _NOT_FOUND and "error" not in item)


def _rejection(composition: Composition, item: Mapping[str, Any]) -> Rejection:
    error = item.get("error", {})
    cause = error.get("caused_by", {}).get("reason", "")
    return Rejection(
        composition=composition,
        status=item["status"],
        kind=error.get("type", "unknown"),
        reason=": ".join(part for part in (error.get("reason", ""), cause) if part),
    )
