"""What Elasticsearch holds: copies of documents by id, on whatever shard, and a fixed view of a whole index.

Guarantees: a read by id is realtime, whether the index was refreshed or not. A `View` does not change while it is
open, and has every copy that was written before it was opened. An answer is whole: a shard that does not answer is an
error, and never fewer copies. Errors are raised as the client raises them; what they mean is said by `syncer.policy`.

A document's ``_source`` comes back as the bytes that were written, and stays so: who compares documents need not
parse them. Only what stands around it is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

import elasticsearch
import msgspec
from elastic_transport import Serializer
from elasticsearch import Elasticsearch

from syncer.errors import IndexingError, UnavailableError
from syncer.model import ID_BYTES_MAX, Place, Target
from syncer.shards import Shards

_KEEP_ALIVE = "20m"
_DISK_BLOCK = "index.blocks.read_only_allow_delete"
_PLACES_MAX = 1000
_LOST = "search_context_missing_exception"
_AGAIN = "Wait until the health of the index is green or yellow, and do the same again."
_NO_SHARD = ("no_shard_available_action_exception", "illegal_index_shard_state_exception")
_IN_ORDER = [{"_shard_doc": "asc"}]

_SHARDS_FIELDS = "metadata.indices.*.routing_num_shards,metadata.indices.*.settings.index.number_of_shards"
_SEQUENCE_FIELDS = "indices.*.shards.*.seq_no.max_seq_no,indices.*.shards.*.routing.primary"
_WRITES_FIELDS = "_all.primaries.indexing.index_total,_all.primaries.indexing.delete_total"
_JSON = {"accept": "application/json", "content-type": "application/json"}
_ANSWERED = "application/vnd.elasticsearch+json"  # what the client makes of that, and gets


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a document as Elasticsearch holds it.

    Args:
        id: The document's id.
        version: Which version was written.
        routing: The ``_routing`` that it was written with, if any.
        json: The document as it was written; an empty one if the index keeps none.
    """

    id: str = msgspec.field(name="_id")
    version: int = msgspec.field(name="_version", default=0)
    routing: str | None = msgspec.field(name="_routing", default=None)
    json: msgspec.Raw = msgspec.field(name="_source", default=msgspec.Raw(b"{}"))

    @property
    def place(self) -> Place:
        """Where it lies."""
        return Place.of(self.id, self.routing)

    @property
    def source(self) -> bytes:
        """The document as it was written."""
        return bytes(self.json)


class _Found(Copy, frozen=True, kw_only=True):
    """One answer to a read by id."""

    found: bool = False
    error: dict[str, Any] | None = None


class _Documents(msgspec.Struct, frozen=True):
    docs: list[_Found]


class _Hit(Copy, frozen=True, kw_only=True):
    sort: list[Any] = []


class _Total(msgspec.Struct, frozen=True):
    value: int


class _Hits(msgspec.Struct, frozen=True):
    hits: list[_Hit]
    total: _Total = _Total(0)


class _Answer(msgspec.Struct, frozen=True):
    hits: _Hits
    pit_id: str
    timed_out: bool = False


_DOCUMENTS = msgspec.json.Decoder(_Documents)
_ANSWER = msgspec.json.Decoder(_Answer)
_Decoded = TypeVar("_Decoded")


_decoder: ContextVar[msgspec.json.Decoder[Any] | None] = ContextVar("decoder", default=None)


class _Decoding(Serializer):
    """The client's own serializer, but for answers that we decode; what they say of an error is left to it."""

    def __init__(self, inner: Serializer) -> None:
        self._inner = inner

    def loads(self, data: bytes) -> Any:
        decoder = _decoder.get()
        if decoder is None or data.startswith(b'{"error"'):
            return self._inner.loads(data)
        try:
            return decoder.decode(data)
        except msgspec.DecodeError as error:
            raise elasticsearch.SerializationError(f"It is no answer of Elasticsearch's: {error}") from error

    def dumps(self, data: Any) -> bytes:
        return self._inner.dumps(data)


class Holdings:
    """What an Elasticsearch holds. Safe to share between threads, as the client is."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client
        self._shards: dict[str, Shards] = {}
        serializers = client.transport.serializers.serializers
        if not isinstance(serializers[_ANSWERED], _Decoding):
            serializers[_ANSWERED] = _Decoding(serializers[_ANSWERED])

    def shards(self, target: Target) -> Shards:
        """The shards of a target; asked once."""
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

    def read(self, target: Target, ids: Iterable[str]) -> list[Copy]:
        """The copies that a target holds of these documents, on whatever shard; realtime.

        Raises:
            UnavailableError: The shard of one of them is away.
            IndexingError: Elasticsearch could not say of one of them.
        """
        addresses = self.shards(target).addresses
        valid = _valid(ids)
        step = max(1, _PLACES_MAX // len(addresses))
        return [
            copy
            for at in range(0, len(valid), step)
            for copy in self._read(target, [(one, address) for one in valid[at : at + step] for address in addresses])
        ]

    def _read(self, target: Target, places: Sequence[tuple[str, str]]) -> Iterator[Copy]:
        docs = [{"_id": id_, "routing": routing} for id_, routing in places]
        for one in self._ask(_DOCUMENTS, f"/{target.index_name}/_mget", {"docs": docs}).docs:
            if one.error is not None:
                kind = str(one.error.get("type"))
                reason = one.error.get("reason", kind)
                if kind in _NO_SHARD:
                    raise UnavailableError(f"A shard of {target.index_name} is away: {reason}", hint=_AGAIN, kind=kind)
                raise IndexingError(f"Elasticsearch cannot read document {one.id}: {reason}")
            if one.found:
                yield one

    def refresh(self, target: Target) -> None:
        """Have searches find what is written by now; by itself that comes with the index's refresh interval.

        Raises:
            UnavailableError: A shard was away.
        """
        refreshed = self._client.indices.refresh(index=target.index_name).body
        if refreshed["_shards"]["failed"]:
            raise UnavailableError(f"Not every shard of {target.index_name} could be refreshed", hint=_AGAIN)

    @contextmanager
    def view(self, target: Target, *, shard: int | None = None) -> Iterator[View]:
        """All that a target, or one shard of it, holds as of now, as it will stay while the view is open."""
        self.refresh(target)
        preference = None if shard is None else f"_shards:{shard}"
        opened = self._client.open_point_in_time(index=target.index_name, keep_alive=_KEEP_ALIVE, preference=preference)
        point: str = opened.body["id"]
        try:
            yield View(self, point)
        finally:
            with suppress(elasticsearch.ApiError, elasticsearch.TransportError):  # it ends by itself
                self._client.close_point_in_time(id=point)

    def sequence_numbers(self, target: Target) -> dict[int, int]:
        """The last sequence number of each shard as of now: every write that comes later gets a greater one.

        Raises:
            UnavailableError: A shard cannot be asked, since its primary is not there.
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
        if len(found) != self.shards(target).number:
            raise UnavailableError(
                f"Not every shard of {target.index_name} has its primary",
                hint=_AGAIN,
            )
        return found

    def untouched_since(self, target: Target, numbers: Mapping[int, int], *, page: int) -> Iterator[list[Place]]:
        """Where the copies lie that nothing was written to since the shards were at these numbers, in pages.

        Each copy that was there then and is there unchanged now is in it. One that was written since is not, unless
        its shard has lost its primary in between: the next one may give out again the numbers of writes that were
        never answered.
        """
        for shard, number in numbers.items():
            with self.view(target, shard=shard) as view:
                yield from view.walk(page=page, until=number)

    def is_well(self, alias: str) -> bool:
        """Whether every shard behind an alias has its primary."""
        return str(self._client.cluster.health(index=alias, timeout="1s").body["status"]) != "red"

    def takes_documents(self, index_name: str) -> bool:
        """Whether every shard of an index has its primary, and no full disk has it take only deletes.

        Raises:
            elasticsearch.NotFoundError: It is gone.
        """
        found = self._client.indices.get_settings(index=index_name, flat_settings=True).body
        is_blocked = any(str(one["settings"].get(_DISK_BLOCK)).lower() == "true" for one in found.values())
        return not is_blocked and self.is_well(index_name)

    def objection(self, target: Target, id_: str, source: bytes) -> tuple[str, str] | None:
        """What an index has against a document, found out without writing it: the name of the error and its sentence.

        Raises:
            elasticsearch.ApiError, elasticsearch.TransportError: That is not said: by a server before 8.15, for one.
        """
        place = f'"_index":{json.dumps(target.index_name)},"_id":{json.dumps(id_)}'.encode()
        response = self._client.perform_request(
            "POST",
            "/_ingest/_simulate",
            headers=_JSON,
            body=b'{"docs":[{%b,"_source":%b}]}' % (place, source),
        )
        error = response.body["docs"][0].get("doc", response.body["docs"][0]).get("error")
        if error is None:
            return None
        cause = error.get("caused_by", {}).get("reason", "")
        return error["type"], ": ".join(part for part in (error.get("reason", ""), cause) if part)

    def count(self, target: Target) -> int:
        """How many documents a search of this target finds.

        Raises:
            UnavailableError: A shard is away, and what it has was not counted.
        """
        answer = self._client.count(index=target.index_name).body
        if answer["_shards"]["failed"]:
            raise UnavailableError(f"Not every shard of {target.index_name} could be asked", hint=_AGAIN)
        return int(answer["count"])

    def writes(self, targets: Sequence[Target]) -> int:
        """How many documents were ever written to these targets, or deleted; a shard that moves begins again."""
        if not targets:
            return 0
        names = [one.index_name for one in targets]
        stats = self._client.indices.stats(index=names, metric="indexing", filter_path=_WRITES_FIELDS).body
        totals = stats.get("_all", {}).get("primaries", {}).get("indexing", {})
        return int(totals.get("index_total", 0)) + int(totals.get("delete_total", 0))

    def search(self, point: str, request: Mapping[str, Any]) -> _Hits:
        """One search in an open view.

        Raises:
            UnavailableError: It was cut short, or the view is lost.
        """
        # What a shard that is away has is neither missing nor one too few.
        path = "/_search?allow_partial_search_results=false"
        try:
            answer = self._ask(_ANSWER, path, {**request, "pit": {"id": point, "keep_alive": _KEEP_ALIVE}})
        except elasticsearch.NotFoundError as error:
            if _LOST not in str(error.body):
                raise
            raise UnavailableError("A view of an index was lost", hint="Was a node restarted? Do it again.") from error
        if answer.timed_out:
            raise UnavailableError("Elasticsearch cut a search short", hint="Is search.default_search_timeout set?")
        return answer.hits

    def _ask(self, decoder: msgspec.json.Decoder[_Decoded], path: str, request: Mapping[str, Any]) -> _Decoded:
        token = _decoder.set(decoder)
        try:
            answer: _Decoded = self._client.perform_request("POST", path, headers=_JSON, body=request).body
        finally:
            _decoder.reset(token)
        return answer


def _valid(ids: Iterable[str]) -> list[str]:
    """Those that Elasticsearch takes at all: it has no copy under another, and refuses to be asked for one."""
    return [one for one in ids if 1 <= len(one.encode()) <= ID_BYTES_MAX]


class View:
    """What a target held at one moment. Safe to share between threads."""

    def __init__(self, holdings: Holdings, point: str) -> None:
        self._holdings = holdings
        self._point = point

    def count(self) -> int:
        """How many copies there are."""
        return self._holdings.search(self._point, {"size": 0, "track_total_hits": True}).total.value

    def find(self, ids: Sequence[str]) -> list[Copy]:
        """All copies of these documents, on whatever shard and under whatever routing."""
        valid = _valid(ids)
        request: dict[str, Any] = {"query": {"ids": {"values": valid}}, "sort": _IN_ORDER, "size": len(valid)}
        request |= {"version": True, "track_total_hits": True}
        found: list[Copy] = []
        while valid:
            answer = self._holdings.search(self._point, request)
            found += answer.hits
            if len(found) >= answer.total.value or not answer.hits:
                break
            request["search_after"] = answer.hits[-1].sort  # a document has several copies
        return found

    def walk(self, *, page: int, until: int | None = None) -> Iterator[list[Place]]:
        """Where all copies lie, in pages, in no order; or those whose sequence number is no greater than that."""
        query = {} if until is None else {"query": {"range": {"_seq_no": {"lte": until}}}}
        yield from self._pages({**query, "sort": _IN_ORDER}, page)

    def some(self, number: int, *, seed: int, page: int) -> Iterator[list[Place]]:
        """Where so many copies lie, chosen at random."""
        chance = {"function_score": {"random_score": {"seed": seed, "field": "_seq_no"}, "boost_mode": "replace"}}
        request = {"query": chance, "sort": [{"_score": "desc"}, *_IN_ORDER]}
        for places in self._pages(request, min(number, page)):
            yield places[:number]
            number -= len(places)
            if number <= 0:
                return

    def _pages(self, request: dict[str, Any], page: int) -> Iterator[list[Place]]:
        request = {**request, "size": page, "_source": False, "track_total_hits": False}
        while hits := self._holdings.search(self._point, request).hits:
            yield [hit.place for hit in hits]
            request["search_after"] = hits[-1].sort
