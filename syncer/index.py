"""The documents in Elasticsearch: bulk writes; and the epoch's record. What it holds is read by `syncer.holdings`.

Guarantees: writes are whole documents or deletes, each with an external version, so that a document never
goes back; a version conflict is a success, since something at least as new is there or on its way; writes
name an alias and require it, so that a late write never re-creates an index that was dropped. Errors are raised
as the client raises them; what they mean is said by `syncer.policy`.

Elasticsearch keeps versions per shard and id. So a document with a ``_routing``, which may have been on any shard
before, is written to all of them: whole to its own, and as a delete with the same version to each of the others. Then
every shard sees all states of every document, ordered by version, and no copy stays behind where it once was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NamedTuple, cast
from uuid import UUID

import elasticsearch
from elasticsearch import Elasticsearch
from elasticsearch.serializer import NdjsonSerializer

from syncer.errors import IndexingError
from syncer.holdings import Holdings
from syncer.model import ID_BYTES_MAX, Composition, Target
from syncer.settings import ElasticsearchSettings

OLDEST_SUPPORTED_VERSION = 8

_STATE_INDEX = "syncer-state"
_BAD_REQUEST = 400
_NOT_FOUND = 404
_CONFLICT = 409
_TOO_LARGE = 413
_OK_MIN, _OK_MAX = 200, 299
_BULK_TYPES = ("application/x-ndjson", "application/vnd.elasticsearch+x-ndjson")
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
        superseded: Not written, on some shard at least, since something at least as new was there.
        rejections: Not written, on some shard at least; one for each shard that refused.
    """

    indexed: int = 0
    deleted: int = 0
    superseded: int = 0
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
    except ValueError as error:
        raise IndexingError(
            f"elasticsearch.url is not valid: {error}",
            hint="As in: http://127.0.0.1:9200 or https://search:9200",
        ) from error
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
        bulk_bytes_max: How large a request may be.

    Attributes:
        holdings: What is there to read.
    """

    def __init__(self, client: Elasticsearch, *, bulk_bytes_max: int) -> None:
        self._client = client
        self._bulk_bytes_max = bulk_bytes_max
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
            if part and size + length > self._bulk_bytes_max:
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
            )
        except elasticsearch.ApiError as error:
            if error.status_code != _TOO_LARGE:
                raise
            self._write_smaller(target, part, outcome)
            return
        items = response.body.get("items", [])
        operations = sum([task.operations for task in part])
        if len(items) != operations:
            raise IndexingError(f"Elasticsearch answered {len(items)} items to a bulk request of {operations}")
        if response.body.get("errors") is False:
            _count_done(part, outcome)
            return
        answers = (next(iter(item.values())) for item in items)
        for task in part:
            _judge(task.composition, list(islice(answers, task.operations)), outcome)

    def _write_smaller(self, target: Target, part: list[_Task], outcome: BulkOutcome) -> None:
        """Write in two requests what is too large for one; a document too large by itself is rejected."""
        if len(part) == 1:
            reason = "the document is larger than Elasticsearch's http.max_content_length"
            outcome.rejections.append(
                Rejection(composition=part[0].composition, status=_TOO_LARGE, kind="too_large", reason=reason)
            )
            return
        middle = len(part) // 2
        self._write_part(target, part[:middle], outcome)
        self._write_part(target, part[middle:], outcome)

    # The epoch, where no restore of Postgres can take it back

    def read_epoch(self, installation: UUID) -> int:
        """The greatest epoch that was written for this installation; 0 if none was."""
        try:
            found = self._client.get(index=_STATE_INDEX, id=f"epoch-{installation}")
        except elasticsearch.NotFoundError:
            return 0
        return int(found.body["_source"]["epoch"])

    def write_epoch(self, installation: UUID, epoch: int) -> None:
        """Write the epoch; its own version forbids that it goes back."""
        try:
            self._client.index(
                index=_STATE_INDEX,
                id=f"epoch-{installation}",
                version=epoch,
                version_type="external_gte",
                document={"epoch": epoch},
            )
        except elasticsearch.ConflictError as error:
            raise IndexingError(
                f"Another daemon has entered an epoch beyond {epoch}", hint="It is tried again by itself."
            ) from error


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
    reason = f"an id has 1 to {ID_BYTES_MAX} bytes"
    outcome.rejections.append(Rejection(composition=composition, status=_BAD_REQUEST, kind="invalid_id", reason=reason))
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
    if any(one["status"] == _CONFLICT for one in items):
        outcome.superseded += 1
    elif composition.source is None:
        outcome.deleted += 1
    else:
        outcome.indexed += 1


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
