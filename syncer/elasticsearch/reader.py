"""Reads what Elasticsearch holds: copies of documents by id, on any shard, and the ids of a whole index.

The target may also be an alias or a data stream that syncer does not write: `Holdings.find`, `ids`, `mappings` and
`refresh_seconds` need the privileges ``read`` and ``view_index_metadata`` alone.

Guarantees: results are complete; an unavailable shard is an error, never fewer copies. A document's ``_source`` is
returned as the bytes that were written, so that documents can be compared without parsing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import count
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import elasticsearch
import mmh3
import msgspec
from elastic_transport import SerializerCollection
from elasticsearch import Elasticsearch
from elasticsearch.serializer import CompatibilityModeJsonSerializer

from syncer.base.errors import IndexingError, UnavailableError
from syncer.base.model import Place, Target, is_id
from syncer.elasticsearch import shortcomings
from syncer.elasticsearch.client import product
from syncer.elasticsearch.shortcomings import Effect

MODULO_SINCE = 9_064_000
"""The ``index.version.created`` from which on a shard is the hash modulo the number of shards: Elasticsearch 9.4."""
OPENSEARCH_BIT = 1 << 27
"""A bit of ``index.version.created`` in OpenSearch."""
_AGAIN = "Wait until the health of the index is green or yellow, and do the same again."
_NAMES_CHARACTERS_MAX = 3000
_HITS_MAX = 1000  # more than a document has copies: one for each shard at most
_SHARDS_SETTINGS = ("number_of_shards", "version.created", "uuid")
_SHARDS_FIELDS = ("routing_num_shards", *(f"settings.index.{name}" for name in _SHARDS_SETTINGS))
_SHARD_FIELDS = ("routing.primary", "seq_no", "commit.user_data.history_uuid")
_STATS_FIELDS = ",".join(["indices.*.uuid", *(f"indices.*.shards.*.{field}" for field in _SHARD_FIELDS)])
_NOT_FOUND, _UNAVAILABLE = 404, 503
_REFRESH = "index.refresh_interval"
_KEPT_OPEN = "5m"
_JSON = {"accept": "application/json", "content-type": "application/json"}


class Shards:
    """The shards of one physical index. Their number never changes: a split or shrunk index is another one.

    ``metadata`` is that of the index in the cluster state. ``addresses`` has a routing value for each shard.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        settings = metadata["settings"]["index"]
        self.number = int(settings["number_of_shards"])
        is_modulo = MODULO_SINCE <= int(settings["version"]["created"]) < OPENSEARCH_BIT
        self._routing_number = self.number if is_modulo else int(metadata["routing_num_shards"])
        routings: dict[int, str] = {}
        for routing in map(str, count()):
            routings.setdefault(self.shard(routing), routing)
            if len(routings) == self.number:
                break
        self.addresses = tuple(routings[shard] for shard in range(self.number))

    def shard(self, routing: str) -> int:
        """Return the shard of a routing value; without one, of the document's id."""
        # Java hashes UTF-16 code units, and Python's % equals Java's floorMod.
        code = mmh3.hash(routing.encode("utf-16-le"), 0, signed=True)
        return code % self._routing_number // (self._routing_number // self.number)


_NO_SOURCE = msgspec.Raw(b"{}")


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a document as Elasticsearch holds it; the ``json`` is empty if the index stores no ``_source``."""

    id: str = msgspec.field(name="_id")
    version: int = msgspec.field(name="_version", default=0)
    routing: str | None = msgspec.field(name="_routing", default=None)
    json: msgspec.Raw = msgspec.field(name="_source", default=_NO_SOURCE)
    sort: list[Any] = []
    index: str = msgspec.field(name="_index", default="")
    fields: dict[str, list[Any]] = {}

    @property
    def place(self) -> Place:
        """The location of the copy."""
        return Place.of(self.id, self.routing)

    @property
    def source(self) -> bytes:
        """The document as written."""
        return bytes(self.json)


class ShardPosition(NamedTuple):
    """How far a shard was written, in sequence numbers.

    Args:
        checkpoint: Every copy of the shard has all writes up to this one: none of them is ever undone.
        greatest: No write has a greater one. It may be of a write that is never acknowledged.
        history: The id of the history of the shard; another one's numbers say nothing of this one's.
    """

    checkpoint: int
    greatest: int
    history: str

    @classmethod
    def of(cls, copy: Mapping[str, Any]) -> ShardPosition:
        """Return that of a copy as ``GET /INDEX/_stats`` describes it."""
        numbers, commit = copy["seq_no"], copy.get("commit", {})
        history = commit.get("user_data", {}).get("history_uuid", "")
        return cls(int(numbers["global_checkpoint"]), int(numbers["max_seq_no"]), history)


class Position(NamedTuple):
    """How far an index was written: its id, and each shard by its number."""

    uuid: str
    shards: dict[str, ShardPosition]


class _Total(msgspec.Struct, frozen=True):
    value: int


class _Hits(msgspec.Struct, frozen=True):
    hits: list[Copy]
    total: _Total = _Total(0)


class _Answer(msgspec.Struct, frozen=True):
    hits: _Hits
    timed_out: bool = False


class _Documents(msgspec.Struct, frozen=True):
    docs: list[Copy]


_UNDECODABLE = (msgspec.DecodeError, RecursionError)
"""The server keeps documents that msgspec rejects: with half a surrogate pair, or nested deeper than it allows."""
_ANSWER = msgspec.json.Decoder(_Answer)
_DOCUMENTS = msgspec.json.Decoder(_Documents)


class _Undecoded(CompatibilityModeJsonSerializer):
    """Leaves response bodies undecoded, except errors, which the client must parse."""

    def loads(self, data: bytes) -> Any:
        return super().loads(data) if data.startswith(b'{"error"') else data


def _undecoded(client: Elasticsearch) -> Elasticsearch:
    """Return a client on the same connections that leaves responses undecoded."""
    raw, transport, mimetype = client.options(), copy(client.transport), _Undecoded.mimetype
    undecoded = dict.fromkeys((mimetype, "application/json"), _Undecoded())
    serializers = {**transport.serializers.serializers, **undecoded}
    transport.serializers = SerializerCollection(serializers, default_mimetype=mimetype)
    raw._transport = transport  # noqa: SLF001 - a new client would lose its headers and timeouts
    return raw


def index_metadata(
    client: Elasticsearch, names: str | Sequence[str], *fields: str, **options: Any
) -> dict[str, dict[str, Any]]:
    """Return fields of indices in the cluster state, by index; it names also those whose blocks forbid to ask."""
    path = ",".join(f"metadata.indices.*.{field}" for field in fields)
    indices: dict[str, dict[str, Any]] = {}
    for group in in_lines([names] if isinstance(names, str) else names):
        state = client.cluster.state(metric="metadata", index=group, filter_path=path, **options).body
        indices |= state.get("metadata", {}).get("indices", {})
    return indices


def in_lines(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield names in groups that fit into the first line of a request, of which a server takes 4,096 bytes."""
    group: list[str] = []
    for name in names:
        if group and len(",".join([*group, name])) > _NAMES_CHARACTERS_MAX:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def _cut_short() -> UnavailableError:
    return UnavailableError("A search was cut short", hint="Is search.default_search_timeout set?")


class Holdings:
    """Reads from one Elasticsearch. Safe to share between threads, as the client is."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client
        self._shards: dict[str, Shards] = {}
        """By the id of an index: one that is split or shrunk may be given its name."""
        self._hits_max: dict[str, int] = {}
        """By index, how many hits to ask for, if ``index.max_result_window`` has refused more."""
        self._raw = _undecoded(client)
        self._product = product(client)

    def shards(self, target: Target) -> Shards:
        """Return the shards that a target has now; refuse if a routing leads to another one than computed."""
        metadata = index_metadata(self._client, target.index_name, *_SHARDS_FIELDS, ignore_unavailable=False)
        if target.index_name not in metadata:
            raise IndexingError(f"{target.index_name} is an alias now, and no index", hint="Run: syncer apply")
        uuid = metadata[target.index_name]["settings"]["index"]["uuid"]
        if uuid not in self._shards:
            shards = Shards(metadata[target.index_name])
            if shards.number > 1:
                self._require_computed_shard(target, shards)
            self._shards[uuid] = shards
        return self._shards[uuid]

    def _require_computed_shard(self, target: Target, shards: Shards) -> None:
        """Ask Elasticsearch where routings of one shard lead; a future version may compute it in another way."""
        shard = shards.number - 1
        routings = [routing for routing in (*shards.addresses, *map(str, range(64))) if shards.shard(routing) == shard]
        answer = self._client.search_shards(index=target.index_name, routing=",".join(routings))
        if {copy["shard"] for copies in answer.body["shards"] for copy in copies} - {shard}:
            problem = (
                f"{self._product.name} routes the documents of {target.index_name} to other shards than syncer computes"
            )
            hint = f"This {self._product.name} is newer than syncer knows. Upgrade syncer."
            raise IndexingError(problem, hint=hint)

    def refresh(self, target: Target) -> None:
        """Make searches find everything written so far, on every shard."""
        self._refresh(target)
        self.count(target)  # a refresh calls no shard failed that has no copy at all, and may ask no shard

    def _refresh(self, target: Target) -> None:
        """Refresh the shards that are there: a search that follows is refused if one is not."""
        if self._client.indices.refresh(index=target.index_name).body["_shards"]["failed"]:
            raise UnavailableError(f"Not every shard of {target.index_name} could be refreshed", hint=_AGAIN)

    def read(self, target: Target, ids: Sequence[str]) -> list[Copy]:
        """Return all copies of these documents, on any shard and under any routing."""
        self._refresh(target)
        return self.find(target, ids)

    def _hits_allowed(self, target: Target, size: int) -> int:
        """Return how many hits a search may ask for, as far as this process has found out."""
        return min(size, self._hits_max.get(target.index_name, size))

    def find(self, target: Target, ids: Sequence[str], *, dates: Sequence[str] = ()) -> list[Copy]:
        """As `read`, but as searches find them: without what was written since the last refresh.

        The ``fields`` of a copy have these ``dates`` as ISO 8601 in UTC, whatever the format of the mapping.
        """
        # Elasticsearch has no copies with other ids, and refuses requests for them.
        valid = list(filter(is_id, ids))
        if not valid:
            return []
        if len(valid) <= (allowed := self._hits_allowed(target, _HITS_MAX)):
            request = {"query": {"ids": {"values": valid}}, "size": allowed, "version": True, "track_total_hits": True}
            if dates:
                format_ = "strict_date_optional_time_nanos"
                request["fields"] = [{"field": field, "format": format_} for field in dates]
            try:
                page = self._search(target, request)
            except elasticsearch.BadRequestError:
                if self._hits_allowed(target, _HITS_MAX) == allowed:
                    raise
                return self.find(target, valid, dates=dates)  # with fewer ids, too
            if page.total.value <= len(page.hits):
                return page.hits
            if len(valid) == 1:
                problem = f"{target.index_name} has more than {len(page.hits):,} copies of {valid[0]}"
                raise IndexingError(problem, hint="Is index.max_result_window less than the number of its shards?")
        middle = len(valid) // 2
        return [copy for half in (valid[:middle], valid[middle:]) for copy in self.find(target, half, dates=dates)]

    def sources(self, target: Target, ids: Sequence[str]) -> dict[str, bytes]:
        """Return those of these documents that the index has, as they were last written, refreshed or not.

        Of an index whose documents have no routing; an id that is on a shard without a primary is left out. None are
        returned if one of them cannot be decoded.
        """
        if not ids:
            return {}
        answer = self._raw.mget(index=target.index_name, ids=list(ids))
        try:
            documents = _DOCUMENTS.decode(cast("bytes", answer.body)).docs
        except _UNDECODABLE:
            return {}
        return {document.id: document.source for document in documents if document.json is not _NO_SOURCE}

    def ids(self, target: Target, *, page: int) -> Iterator[list[str]]:
        """Yield the ids of all documents that a point in time shows, in chunks; one id may be in several indices."""
        path, options, key, order = self._product.point_in_time
        opening = f"/{quote(target.index_name, safe=',*')}{path}?keep_alive={_KEPT_OPEN}{options}"
        point = {"id": self._client.perform_request("POST", opening, headers=_JSON).body[key]}
        request: dict[str, Any] = {"sort": order, "source": False, "track_total_hits": False}
        request |= {"size": self._hits_allowed(target, page), "allow_partial_search_results": False}
        try:
            while True:
                answer = self._client.search(**request, pit={**point, "keep_alive": _KEPT_OPEN}).body
                if answer["timed_out"]:
                    raise _cut_short()
                point = {"id": answer["pit_id"]}
                hits = answer["hits"]["hits"]
                if not hits:
                    return
                yield [hit["_id"] for hit in hits]
                request["search_after"] = hits[-1]["sort"]
        finally:
            tolerant = self._client.options(ignore_status=_NOT_FOUND)
            tolerant.perform_request("DELETE", path, headers=_JSON, body={key: point["id"]})

    def mappings(self, target: Target) -> dict[str, dict[str, Any]]:
        """Return the mapping of each physical index that a search of this target reads; each stores its ``_source``."""
        try:
            answer = self._client.indices.get_mapping(index=target.index_name).body
        except elasticsearch.NotFoundError:
            answer = {}
        if not answer:
            hint = "Name an index, an alias or a data stream. Check elasticsearch.url, too."
            raise IndexingError(f"{self._product.name} has nothing that is called {target.index_name}", hint=hint)
        for name, index in answer.items():
            if index["mappings"].get("_source", {}).get("enabled") is False:
                raise IndexingError(f"{name} stores no _source, so there is nothing to compare with")
        return {name: index["mappings"] for name, index in answer.items()}

    def refresh_seconds(self, target: Target) -> float:
        """Return after how long searches find what was written; 0 if nothing but a request refreshes an index."""
        asked: dict[str, Any] = {"name": _REFRESH, "include_defaults": True, "flat_settings": True}
        indices = self._client.indices.get_settings(index=target.index_name, **asked).body.values()
        intervals = [{**index.get("defaults", {}), **index["settings"]}.get(_REFRESH, "1s") for index in indices]
        seconds = [shortcomings.seconds(interval) for interval in intervals]
        return max(seconds) if min(seconds) > 0 else 0

    def sample(self, target: Target, *, but: Sequence[str], number: int) -> list[str]:
        """Return the ids of so many documents, or fewer, as searches find them: any but these, at random."""
        unlike = {"bool": {"must_not": {"ids": {"values": list(but)}}}}
        query = {"function_score": {"query": unlike, "random_score": {}}}
        return [hit.id for hit in self._search(target, {"query": query, "size": number, "_source": False}).hits]

    def sequence_numbers(self, target: Target) -> dict[str, int]:
        """Return the last sequence number of each shard; every later write gets a greater one."""
        return {shard: numbers.greatest for shard, numbers in self.position(target.index_name).shards.items()}

    def position(self, index_name: str) -> Position:
        """Return how far an index was written; refuse if it lacks the primary of a shard."""
        position = self.positions([index_name]).get(index_name)
        if position is None or len(position.shards) != self.shards(Target.of_index(index_name)).number:
            raise UnavailableError(f"Not every shard of {index_name} has its primary", hint=_AGAIN)
        return position

    def positions(self, index_names: Sequence[str]) -> dict[str, Position]:
        """Return how far indices were written, as far as they are there, on the shards that have a primary."""
        asked: dict[str, Any] = {"level": "shards", "metric": "docs", "expand_wildcards": ["open", "hidden"]}
        indices: dict[str, Any] = {}
        for patterns in in_lines(f"{name}*" for name in index_names):  # because a missing name would be an error
            stats = self._client.indices.stats(index=patterns, filter_path=_STATS_FIELDS, **asked).body
            indices |= {name: index for name, index in stats.get("indices", {}).items() if name in index_names}
        positions = {name: Position(index["uuid"], {}) for name, index in indices.items()}
        for name, index in indices.items():
            for shard, copies in index.get("shards", {}).items():
                primaries = [copy for copy in copies if copy["routing"]["primary"] and "seq_no" in copy]
                if primaries:  # one that is being relocated appears twice
                    positions[name].shards[shard] = max(map(ShardPosition.of, primaries))
        return positions

    def untouched_since(self, target: Target, numbers: Mapping[str, int], *, page: int) -> Iterator[list[Place]]:
        """Yield the places of copies that were not written since the shards had these numbers, in chunks.

        Every copy that existed then and is unchanged is included. A copy written since is excluded, unless its shard
        lost its primary in between: the new primary may reuse the numbers of writes that were never acknowledged.
        """
        self._refresh(target)
        for shard, number in numbers.items():
            yield from self._numbered(target, shard, -1, number, page=page)

    def written_since(self, target: Target, numbers: Mapping[str, int], *, page: int) -> Iterator[list[str]]:
        """Yield the ids of copies that were written since the shards had these numbers, in chunks."""
        self.refresh(target)
        for shard, greatest in self.sequence_numbers(target).items():
            for places in self._numbered(target, shard, numbers[shard], greatest, page=page):
                yield [place.id for place in places]

    def _numbered(self, target: Target, shard: str, lower: int, upper: int, *, page: int) -> Iterator[list[Place]]:
        """Yield the places of copies on a shard whose sequence numbers are greater than ``lower``, up to ``upper``."""
        # Each chunk is a search of its own, so that nothing is kept open however long the caller takes.
        span = page
        while lower < upper:
            # With an end, since Elasticsearch would find everything up to the greatest number for each chunk.
            end = min(upper, lower + span)
            request: dict[str, Any] = {"query": {"range": {"_seq_no": {"gt": lower, "lte": end}}}, "size": page}
            request |= {"sort": [{"_seq_no": "asc"}], "_source": False, "track_total_hits": False}
            hits = self._search(target, request, shard=shard).hits
            if hits:
                yield [hit.place for hit in hits]
            # Numbers have gaps where documents were written again.
            is_full = len(hits) >= self._hits_allowed(target, page)
            end, span = (hits[-1].sort[0], hits[-1].sort[0] - lower) if is_full else (end, 2 * span)
            lower = end

    def shortcomings(
        self, target: Target, *, searched_as: str = "", has_routing: bool = True
    ) -> list[shortcomings.Shortcoming]:
        """Return what keeps an index from holding and showing every document as it was written."""
        answer = self.described(target)
        return list(shortcomings.find(target, answer, searched_as=searched_as, has_routing=has_routing))

    def described(self, target: Target) -> dict[str, Any]:
        """Return what ``GET`` tells of an index and of others that its write alias leads to; at least its block."""
        names = [target.index_name, target.write_alias]
        as_read: dict[str, Any] = {"ignore_unavailable": True, "flat_settings": True, "include_defaults": True}
        try:
            return dict(self._client.indices.get(index=names, **as_read).body)
        except elasticsearch.AuthorizationException as error:
            if shortcomings.metadata_block(target.index_name, error) is None:
                raise
            block = {"index.blocks.metadata": "true"}
            return {target.index_name: {"settings": block, "mappings": {}, "aliases": {target.write_alias: {}}}}

    def require_usable(self, target: Target, *, has_routing: bool = True) -> None:
        """Refuse an index that may refuse or change what is written to it, or that is not the alias's only one."""
        for shortcoming in self.shortcomings(target, has_routing=has_routing):
            if shortcoming.effect is Effect.REFUSES:
                raise IndexingError(shortcoming.problem, hint=shortcoming.hint)

    def count(self, target: Target) -> int:
        """Return how many documents a search of all shards of this target finds."""
        try:
            return self._search(target, {"query": {"match_all": {}}, "size": 0, "track_total_hits": True}).total.value
        except elasticsearch.ApiError as error:
            if error.status_code != _UNAVAILABLE:
                raise
            raise UnavailableError(f"Not every shard of {target.index_name} could be asked", hint=_AGAIN) from error

    def searched(self, aliases: Sequence[str]) -> dict[str, list[str]]:
        """Return the physical indices that searches by each of these names find; an index may have the name itself."""
        indices = index_metadata(self._client, aliases, "aliases", expand_wildcards="all")
        return {
            alias: sorted(name for name, index in indices.items() if alias in (name, *index["aliases"]))
            for alias in aliases
        }

    def _search(self, target: Target, request: Mapping[str, Any], *, shard: str | None = None) -> _Hits:
        # Partial results would make the copies of an unavailable shard look missing.
        path = f"/{quote(target.index_name, safe=',*')}/_search?allow_partial_search_results=false"
        if preference := "|".join(filter(None, (shard and f"_shards:{shard}", self._product.preference))):
            path += f"&preference={preference}"
        size = self._hits_allowed(target, request["size"])
        asked = {**request, **self._product.search_options, "size": size}
        try:
            body = self._raw.perform_request("POST", path, headers=_JSON, body=asked).body
        except elasticsearch.BadRequestError as error:
            # Elasticsearch 9 limits how many ids a query names in the same way, in other words.
            if not re.search("max.result.window", str(error.body)) or size == 1:
                raise
            self._hits_max[target.index_name] = size // 2
            if "ids" in request["query"]:
                raise
            return self._search(target, request, shard=shard)
        try:
            answer = _ANSWER.decode(body)
        except _UNDECODABLE as error:
            if request.get("_source") is False:
                raise elasticsearch.SerializationError(f"Not a response of {self._product.name}: {error}") from error
            page = self._search(target, {**request, "_source": False}, shard=shard)
            hits = [msgspec.structs.replace(hit, json=self._source(target, hit)) for hit in page.hits]
            return _Hits(hits=hits, total=page.total)
        if answer.timed_out:
            raise _cut_short()
        return answer.hits

    def _source(self, target: Target, copy: Copy) -> msgspec.Raw:
        """Return a document as searches find it, without decoding it."""
        path = f"/{target.index_name}/_doc/{quote(copy.id, safe='')}?realtime=false"
        path = f"{path}&preference={self._product.preference}" if self._product.preference else path
        path = path if copy.routing is None else f"{path}&routing={quote(copy.routing, safe='')}"
        body = self._raw.options(ignore_status=_NOT_FOUND).perform_request("GET", path, headers=_JSON).body
        # Within a string, a quote is escaped: this is the key of the last field. It is gone if the document is.
        return msgspec.Raw(body.partition(b'"_source":')[2][:-1] or b"{}")
