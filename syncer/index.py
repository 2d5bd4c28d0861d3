"""The documents in Elasticsearch: bulk writes, reads by id, the walk over all ids; and the epoch's record.

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
from syncer.model import Composition, Place, Target
from syncer.settings import ElasticsearchSettings
from syncer.shards import Shards

OLDEST_SUPPORTED_VERSION = 8

_STATE_INDEX = "syncer-state"
_BAD_REQUEST = 400
_NOT_FOUND = 404
_CONFLICT = 409
_TOO_LARGE = 413
ID_BYTES_MAX = 512
_OK_MIN, _OK_MAX = 200, 299
_PLACES_MAX = 1000
_KEEP_ALIVE = "5m"

_SHARDS_FIELDS = "metadata.indices.*.routing_num_shards,metadata.indices.*.settings.index.number_of_shards"
_SEQUENCE_FIELDS = "indices.*.shards.*.seq_no.max_seq_no,indices.*.shards.*.routing.primary"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A copy of a document as Elasticsearch holds it."""

    place: Place
    version: int
    source: dict[str, Any]


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
    """What syncer does with Elasticsearch. Safe to share between threads, as the client is."""

    def __init__(self, client: Elasticsearch, *, bulk_bytes_max: int) -> None:
        self._client = client
        self._bulk_bytes_max = bulk_bytes_max
        self._shards: dict[str, Shards] = {}

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
        return self._shards_of(target).others(composition.place.routing)

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

    # Reading

    def read(self, target: Target, places: Iterable[Place]) -> list[Stored]:
        """The copies that a target holds on the shards of these places; realtime, whether refreshed or not."""
        response = self._client.mget(
            index=target.index_name,
            docs=[{"_id": one.id, "routing": one.routing} for one in places],
            filter_path="docs._id,docs._version,docs._routing,docs.found,docs._source,docs.error",
        )
        return [
            Stored(place=_place(hit), version=hit["_version"], source=hit.get("_source", {}))
            for hit in response.body.get("docs", [])
            if hit.get("found")
        ]

    def read_everywhere(self, target: Target, ids: Sequence[str]) -> list[Stored]:
        """The copies that a target holds of these documents, on whatever shard; realtime."""
        addresses = self._shards_of(target).addresses
        step = max(1, _PLACES_MAX // len(addresses))
        pages = (ids[at : at + step] for at in range(0, len(ids), step))
        return [
            copy
            for page in pages
            for copy in self.read(target, [Place(id=one, routing=address) for one in page for address in addresses])
        ]

    def _shards_of(self, target: Target) -> Shards:
        shards = self._shards.get(target.index_name)
        if shards is None:
            state = self._client.cluster.state(
                metric="metadata", index=target.index_name, ignore_unavailable=False, filter_path=_SHARDS_FIELDS
            )
            found = state.body["metadata"]["indices"][target.index_name]
            shards = Shards.of(
                number=int(found["settings"]["index"]["number_of_shards"]), routing_number=found["routing_num_shards"]
            )
            self._shards[target.index_name] = shards
        return shards

    def walk(self, target: Target, *, page: int) -> Iterator[list[Place]]:
        """Where all copies in a target lie as of now, in pages, in no order."""
        self._client.indices.refresh(index=target.index_name)
        yield from self._pages(target, page)

    def sequence_numbers(self, target: Target) -> dict[int, int]:
        """The last sequence number of each shard as of now: every write that comes later gets a greater one.

        Raises:
            IndexingError: A shard cannot be asked, since its primary is not there.
        """
        stats = self._client.indices.stats(
            index=target.index_name, level="shards", metric="docs", filter_path=_SEQUENCE_FIELDS
        ).body
        shards = stats.get("indices", {}).get(target.index_name, {}).get("shards", {})
        # A primary that moves to another node is there twice.
        found = {
            int(shard): max(copy["seq_no"]["max_seq_no"] for copy in copies if copy["routing"]["primary"])
            for shard, copies in shards.items()
            if any(copy["routing"]["primary"] and "seq_no" in copy for copy in copies)
        }
        if len(found) != self._shards_of(target).number:
            raise IndexingError(
                f"Not every shard of {target.index_name} has its primary",
                hint="Wait until the health of the index is green or yellow, and do the same again.",
            )
        return found

    def untouched_since(self, target: Target, numbers: Mapping[int, int], *, page: int) -> Iterator[list[Place]]:
        """Where the copies lie that nothing was written to since the shards were at these numbers, in pages.

        Each copy that was there then and is there unchanged now is in it. One that was written since is not, unless
        its shard has lost its primary in between: the next one may give out again the numbers of writes that were
        never answered.
        """
        self._client.indices.refresh(index=target.index_name)
        for shard, number in numbers.items():
            query = {"range": {"_seq_no": {"lte": number}}}
            yield from self._pages(target, page, query=query, preference=f"_shards:{shard}")

    def _pages(
        self, target: Target, page: int, *, query: Mapping[str, Any] | None = None, preference: str | None = None
    ) -> Iterator[list[Place]]:
        """Where the copies lie that a query finds, on one state of the index; all of them, or an error."""
        point = self._client.open_point_in_time(
            index=target.index_name, keep_alive=_KEEP_ALIVE, preference=preference
        ).body["id"]
        after: list[Any] | None = None
        try:
            while True:
                response = self._client.search(
                    size=page,
                    pit={"id": point, "keep_alive": _KEEP_ALIVE},
                    query=query,
                    sort=[{"_shard_doc": "asc"}],
                    source=False,
                    track_total_hits=False,
                    search_after=after,
                    allow_partial_search_results=False,
                ).body
                point = response["pit_id"]
                hits = response["hits"]["hits"]
                if not hits:
                    return
                after = hits[-1]["sort"]
                yield [_place(hit) for hit in hits]
        finally:
            self._client.close_point_in_time(id=point)

    def count(self, target: Target) -> int:
        """How many documents a search of this target finds."""
        return int(self._client.count(index=target.index_name).body["count"])

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


def _place(hit: Mapping[str, Any]) -> Place:
    return Place.of(hit["_id"], hit.get("_routing"))


def _has_valid_id(composition: Composition, outcome: BulkOutcome) -> bool:
    """Whether Elasticsearch takes the id; it would refuse the whole request for one that it does not."""
    if 1 <= len(composition.id.encode()) <= ID_BYTES_MAX:
        return True
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
