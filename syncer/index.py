"""The documents in Elasticsearch: bulk writes, reads by id, the walk over all ids; and the epoch's record.

Guarantees: writes are whole documents or deletes, each with an external version, so that a document never
goes back; a version conflict is a success, since something at least as new is there or on its way; writes
name an alias and require it, so that a late write never re-creates an index that was dropped. Errors are raised
as the client raises them; what they mean is said by `syncer.policy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import elasticsearch
from elasticsearch import Elasticsearch

from syncer.errors import IndexingError
from syncer.model import Composition, Target
from syncer.settings import ElasticsearchSettings

OLDEST_SUPPORTED_VERSION = 8

_STATE_INDEX = "syncer-state"
_BAD_REQUEST = 400
_NOT_FOUND = 404
_CONFLICT = 409
_TOO_LARGE = 413
_ID_BYTES_MAX = 512
_OK_MIN, _OK_MAX = 200, 299

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
    """What became of the documents of one bulk write.

    Args:
        indexed: Written.
        deleted: Deleted, or known to be absent.
        superseded: Not written since something at least as new was there.
        rejections: Not written.
    """

    indexed: int = 0
    deleted: int = 0
    superseded: int = 0
    rejections: list[Rejection] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A document as Elasticsearch holds it."""

    id: str
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


class Index:
    """What syncer does with Elasticsearch. Safe to share between threads, as the client is."""

    def __init__(self, client: Elasticsearch, *, bulk_bytes_max: int) -> None:
        self._client = client
        self._bulk_bytes_max = bulk_bytes_max

    # Writing

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write documents to one target, in requests of bounded size.

        Raises:
            elasticsearch.ApiError, elasticsearch.TransportError: A request failed as a whole. What went before
                may have been written; writing it again is harmless.
        """
        outcome = BulkOutcome()
        for part in self._parts([one for one in compositions if _has_valid_id(one, outcome)]):
            self._write_part(target, part, outcome)
        return outcome

    def _parts(self, compositions: Sequence[Composition]) -> Iterator[list[Composition]]:
        part: list[Composition] = []
        size = 0
        for composition in compositions:
            length = len(composition.source or b"")
            if part and size + length > self._bulk_bytes_max:
                yield part
                part, size = [], 0
            part.append(composition)
            size += length
        if part:
            yield part

    def _write_part(self, target: Target, part: list[Composition], outcome: BulkOutcome) -> None:
        operations: list[bytes | dict[str, Any]] = []
        for composition in part:
            action = "delete" if composition.source is None else "index"
            meta = {"_id": composition.id, "version": composition.version, "version_type": "external"}
            operations.append({action: meta})
            if composition.source is not None:
                operations.append(composition.source)
        try:
            response = self._client.bulk(
                index=target.write_alias,
                operations=cast("Any", operations),
                require_alias=True,
                filter_path=_ITEM_FIELDS,
            )
        except elasticsearch.ApiError as error:
            if error.status_code != _TOO_LARGE:
                raise
            self._write_smaller(target, part, outcome)
            return
        items = response.body.get("items", [])
        if len(items) != len(part):
            raise IndexingError(f"Elasticsearch answered {len(items)} items to a bulk request of {len(part)}")
        for composition, item in zip(part, items, strict=True):
            _judge(composition, next(iter(item.values())), outcome)

    def _write_smaller(self, target: Target, part: list[Composition], outcome: BulkOutcome) -> None:
        """Write in two requests what is too large for one; a document too large by itself is rejected."""
        if len(part) == 1:
            reason = "the document is larger than Elasticsearch's http.max_content_length"
            outcome.rejections.append(
                Rejection(composition=part[0], status=_TOO_LARGE, kind="too_large", reason=reason)
            )
            return
        middle = len(part) // 2
        self._write_part(target, part[:middle], outcome)
        self._write_part(target, part[middle:], outcome)

    # Reading

    def read(self, target: Target, ids: Sequence[str]) -> dict[str, Stored]:
        """The documents that a target holds, by id; realtime, whether refreshed or not."""
        response = self._client.mget(
            index=target.index_name,
            ids=list(ids),
            filter_path="docs._id,docs._version,docs.found,docs._source,docs.error",
        )
        return {
            hit["_id"]: Stored(id=hit["_id"], version=hit["_version"], source=hit.get("_source", {}))
            for hit in response.body.get("docs", [])
            if hit.get("found")
        }

    def walk(self, target: Target, *, page: int) -> Iterator[list[str]]:
        """The ids of all documents in a target as of now, in pages, in no order."""
        self._client.indices.refresh(index=target.index_name)
        point = self._client.open_point_in_time(index=target.index_name, keep_alive="5m").body["id"]
        after: list[Any] | None = None
        try:
            while True:
                response = self._client.search(
                    size=page,
                    pit={"id": point, "keep_alive": "5m"},
                    sort=[{"_shard_doc": "asc"}],
                    source=False,
                    track_total_hits=False,
                    search_after=after,
                ).body
                point = response["pit_id"]
                hits = response["hits"]["hits"]
                if not hits:
                    return
                after = hits[-1]["sort"]
                yield [hit["_id"] for hit in hits]
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


def _has_valid_id(composition: Composition, outcome: BulkOutcome) -> bool:
    """Whether Elasticsearch takes the id; it would refuse the whole request for one that it does not."""
    if 1 <= len(composition.id.encode()) <= _ID_BYTES_MAX:
        return True
    reason = f"an id has 1 to {_ID_BYTES_MAX} bytes"
    outcome.rejections.append(Rejection(composition=composition, status=_BAD_REQUEST, kind="invalid_id", reason=reason))
    return False


def _judge(composition: Composition, item: Mapping[str, Any], outcome: BulkOutcome) -> None:
    status = item["status"]
    if _OK_MIN <= status <= _OK_MAX or (status == _NOT_FOUND and "error" not in item):
        if composition.source is None:
            outcome.deleted += 1
        else:
            outcome.indexed += 1
    elif status == _CONFLICT:
        outcome.superseded += 1
    else:
        error = item.get("error", {})
        cause = error.get("caused_by", {}).get("reason", "")
        outcome.rejections.append(
            Rejection(
                composition=composition,
                status=status,
                kind=error.get("type", "unknown"),
                reason=": ".join(part for part in (error.get("reason", ""), cause) if part),
            )
        )
