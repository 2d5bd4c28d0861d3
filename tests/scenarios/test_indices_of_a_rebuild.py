"""The indices of a rebuild on a real server: built for a load, settled, searched at one moment, dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from elasticsearch import ApiError, ConnectionTimeout, Elasticsearch

from syncer.base.error_policy import Action, decide
from syncer.base.errors import IndexingError, UnavailableError
from syncer.base.model import Composition, Place, Target
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices

MAPPINGS: dict[str, Any] = {
    "dynamic": "strict",
    "_meta": {"whose": "the user's own"},
    "properties": {
        "text": {"type": "text"},
        "more": {"type": "nested", "properties": {"word": {"type": "keyword"}}},
    },
}
SOURCE = b'{"text": "x", "more": [{"word": "a"}, {"word": "b"}]}'
OURS: dict[str, Any] = {"document": "blogpost", "installation": "one"}


@dataclass
class Room:
    """Syncer's view of Elasticsearch, with the indices of an alias that no other test uses."""

    alias: str
    client: Elasticsearch
    indices: Indices
    index: Index

    def body(self, **settings: Any) -> dict[str, Any]:
        """An index.json with these settings."""
        return {"settings": settings, "mappings": MAPPINGS}

    def build(self, revision: int, body: dict[str, Any] | None = None, **texts: str) -> Target:
        """An index that does not serve yet."""
        body = self.body(number_of_replicas=0) if body is None else body
        named = {"alias": self.alias, **OURS, **texts}
        return self.indices.create(body=body, revision=revision, epoch=1, **named)

    def create(self, revision: int, body: dict[str, Any] | None = None) -> Target:
        """An index that serves."""
        target = self.build(revision, body)
        self.indices.settle(target)
        self.indices.swap(self.alias, target)
        return target

    def plain(self, body: dict[str, Any]) -> Target:
        """An index as Elasticsearch makes it from index.json."""
        target = Target(index_name=f"{self.alias}-plain", write_alias=f"{self.alias}-plain")
        self.client.options(ignore_status=404).indices.delete(index=target.index_name)
        mappings = body["mappings"] | {"_meta": {**body["mappings"]["_meta"], "syncer": OURS}}
        settings = {**body["settings"], "index.gc_deletes": "3600s"}
        self.client.indices.create(index=target.index_name, settings=settings, mappings=mappings)
        return target

    def write(self, target: Target, ids: range, *, version: int = 1) -> None:
        """Documents of two nested ones each."""
        compositions = [Composition(id=str(id_), version=version, source=SOURCE) for id_ in ids]
        assert self.index.write(target, compositions).rejections == []

    def names(self) -> set[str]:
        """Every index of this alias."""
        return set(self.client.indices.get(index=f"{self.alias}*", expand_wildcards="all").body)

    def settings(self, target: Target) -> dict[str, Any]:
        """The settings that an index shares with its like."""
        response = self.client.indices.get_settings(index=target.index_name, flat_settings=True).body
        settings: dict[str, Any] = response[target.index_name]["settings"]
        of_its_own = {"index.uuid", "index.creation_date", "index.provided_name"}
        return {name: value for name, value in settings.items() if name not in of_its_own}

    def mappings(self, target: Target) -> object:
        """Its mappings, with all of its ``_meta``."""
        return self.client.indices.get_mapping(index=target.index_name).body[target.index_name]["mappings"]


@pytest.fixture
def room(client: Elasticsearch) -> Iterator[Room]:
    """A room of its own for each test."""
    room = Room(f"room-{uuid4().hex}", client, Indices(client), Index(client, bulk_bytes_max=8_000_000))
    yield room
    if names := room.names():
        client.indices.delete(index=",".join(names))


BODIES: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "said in full": {"index.number_of_replicas": "0", "index.refresh_interval": -1, "number_of_shards": 2},
    "said as an object": {
        "index": {"number_of_replicas": 0, "translog": {"durability": "async", "sync_interval": "9s"}}
    },
    "as many replicas as nodes": {"auto_expand_replicas": "0-all", "refresh_interval": "1s"},
}


def test_a_settled_index_is_like_one_that_was_never_loaded(room: Room) -> None:
    """Whatever index.json says of the load's settings, all come back, once; a load is not searched meanwhile."""
    for revision, (name, settings) in enumerate(BODIES.items(), 1):
        body = room.body(**settings)
        plain, built = room.plain(body), room.build(revision, body)
        loading = room.settings(built)
        assert (loading["index.refresh_interval"], loading["index.number_of_replicas"]) == ("-1", "0"), name
        assert not room.indices.is_settled(built)
        assert room.indices.searched(room.alias) == []
        room.write(built, range(10))
        room.indices.settle(built)
        assert room.indices.is_settled(built)
        assert room.settings(built) == room.settings(plain), name
        assert room.mappings(built) == room.mappings(plain), name
        assert room.index.holdings.count(built) == 10
        room.client.indices.put_settings(index=built.index_name, settings={"index.max_result_window": 5})
        room.indices.settle(built)
        assert room.settings(built)["index.max_result_window"] == "5", "nothing that was set since is put back"


def test_the_names_of_many_indices_fit_into_requests(room: Room) -> None:
    """A server takes 4,096 bytes of the first line: fewer than the names of a hundred definitions may have."""
    first, last = room.create(1), room.build(2, alias=f"{room.alias}-z")
    missing = [f"{room.alias}-{'x' * 150}-{number:06d}" for number in range(50)]
    names = [first.index_name, *missing, last.index_name]
    room.index.fence(names, 7)
    assert all(room.indices.has_aliases(Target.of_index(name, 7)) for name in (names[0], names[-1]))
    assert room.index.holdings.positions(names).keys() == {first.index_name, last.index_name}
    searched = room.index.holdings.searched([room.alias, *missing])
    assert searched == {room.alias: [first.index_name], **{name: [] for name in missing}}


def test_the_wait_for_replicas_is_bounded_and_says_how_it_ended(room: Room) -> None:
    """On one node a replica finds no place: as well as one without is never reached, as well as one of the same is."""
    body = room.body(number_of_replicas=1)
    alone, with_replica, built = room.create(1), room.create(2, body), room.create(3, body)
    began = monotonic()
    with pytest.raises(IndexingError, match="is yellow after 1 s, and should be green"):
        room.indices.require_healthy(built, like=alone, seconds_max=1)
    assert 1 <= monotonic() - began < 60
    room.indices.require_healthy(built, like=with_replica, seconds_max=30)
    room.indices.require_healthy(room.build(4), like=replace(built, index_name=f"{room.alias}-gone"), seconds_max=30)


def test_a_build_takes_no_name_that_is_in_use(room: Room) -> None:
    """An index of an interrupted build, or of another database, stays as it is, and the build gets another name."""
    foreign = [room.build(2, None, **whose) for whose in ({}, {"installation": "another"}, {"document": "other"})]
    for target in foreign:
        room.write(target, range(1))
    built = room.build(2)
    assert len(room.names()) == 4
    assert built not in foreign
    assert all(room.client.exists(index=target.index_name, id="0") for target in foreign)


def test_a_swap_takes_the_alias_from_every_other_index_and_can_be_repeated(room: Room) -> None:
    """However many of ours have it, or none, or this one among them; an index that is gone takes it from none."""
    first, second, third, deleted = room.create(1), room.create(2), room.build(3), room.build(4)
    room.client.indices.delete(index=deleted.index_name)
    room.client.indices.put_alias(index=first.index_name, name=room.alias)
    assert room.indices.searched(room.alias) == [first.index_name, second.index_name]
    for to in (second, third, third, first):
        room.indices.swap(room.alias, to)
        with pytest.raises(IndexingError, match="is gone"):
            room.indices.swap(room.alias, deleted)
        assert room.indices.searched(room.alias) == [to.index_name]
    room.client.indices.delete_alias(index=first.index_name, name=room.alias)
    room.indices.swap(room.alias, third)
    assert room.indices.searched(room.alias) == [third.index_name]


@pytest.mark.parametrize("epochs", [(2, 2), (9, 9), (10, 9), (0, 1)], ids=str)
def test_a_swap_does_not_undo_the_fence_of_a_later_epoch(room: Room, epochs: tuple[int, int]) -> None:
    """A command that stalled while an epoch was entered points searches at the index, and leaves its write alias."""
    fenced, decided_in = epochs
    built = room.build(1)
    room.index.fence([built.index_name], fenced)
    room.indices.swap(room.alias, Target.of_index(built.index_name, decided_in))
    aliases = room.client.indices.get_alias(index=built.index_name).body[built.index_name]["aliases"]
    assert aliases.keys() == {room.alias, Target.of_index(built.index_name, max(epochs)).write_alias}


def test_an_alias_of_somebody_else_is_not_moved(room: Room) -> None:
    """It points at an index of another database or of none, or is an index itself."""
    built = room.build(1)
    for name in (room.build(2, installation="another").index_name, f"{room.alias}-plain"):
        room.client.options(ignore_status=400).indices.create(index=name)
        room.client.indices.put_alias(index=name, name=room.alias)
        with pytest.raises(IndexingError, match="already points at"):
            room.indices.swap(room.alias, built)
        assert room.indices.searched(room.alias) == [name]
        room.client.indices.delete(index=name)
    room.client.indices.create(index=room.alias)
    with pytest.raises(IndexingError, match="is an index"):
        room.indices.swap(room.alias, built)


def test_an_index_is_dropped_once_nobody_searches_it(room: Room) -> None:
    """One that is searched stays; one that is dropped takes its aliases along, and may be dropped again."""
    served, built = room.create(1), room.build(2)
    with pytest.raises(IndexingError, match="is searched as"):
        room.indices.drop(served)
    assert room.names() == {served.index_name, built.index_name}
    room.indices.swap(room.alias, built)
    for _ in range(2):
        room.indices.drop(served)
        assert room.names() == {built.index_name}


LATE: dict[str, list[Composition]] = {
    "a document": [Composition("1", 1, SOURCE)],
    "a delete": [Composition('"{\u20ac', 1, None)],
    "deletes on each shard": [Composition(str(number), 1, None, "") for number in range(5)],
    "a delete of every shard, then a document": [Composition("1", 1, None, ""), Composition("2", 1, SOURCE, "a")],
    "deletes before documents, in requests of their own": [
        *(Composition(f"{number:0>500}", 1, None, "") for number in range(20)),
        *(Composition(str(number), 1, SOURCE) for number in range(200)),
    ],
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_a_late_request_makes_no_index(room: Room, late: list[Composition]) -> None:
    """Whatever it holds, it is refused once its index is dropped; before, it is done, and nothing besides."""
    target = room.build(1, room.body(number_of_replicas=0, number_of_shards=3))
    index = Index(room.client, bulk_bytes_max=8000)
    assert index.write(target, late).rejections == []
    room.client.indices.refresh(index=target.index_name)
    hits = room.client.search(index=target.index_name, size=1000).body["hits"]["hits"]
    assert {hit["_id"] for hit in hits} == {composition.id for composition in late if composition.source}
    room.indices.drop(target)
    refused = index.write(target, late).rejections
    assert {rejection.composition for rejection in refused} == set(late)
    assert {(rejection.status, rejection.kind) for rejection in refused} == {(404, "index_not_found_exception")}
    assert room.names() == set()


def test_a_document_is_untouched_if_and_only_if_nothing_was_written_to_it(room: Room) -> None:
    """On several shards, with nested documents, routings, deletes, writes that came too late, and after a merge."""
    random = Random(7)
    target = room.build(1, room.body(number_of_shards=3, number_of_replicas=0))
    assert room.index.holdings.sequence_numbers(target) == {"0": -1, "1": -1, "2": -1}

    def untouched(numbers: dict[str, int]) -> list[Place]:
        return [place for page in room.index.holdings.untouched_since(target, numbers, page=7) for place in page]

    def delete(ids: Iterable[int], version: int) -> None:
        room.index.write(target, [Composition(id=str(id_), version=version, source=None) for id_ in ids])

    def places(ids: Iterable[int]) -> set[Place]:
        return {Place.of(str(id_), None) for id_ in ids}

    assert untouched(room.index.holdings.sequence_numbers(target)) == []
    room.write(target, range(200), version=10 << 8)
    routed = [
        Composition(id=f"r{number}", version=10 << 8, source=SOURCE, routing=str(number % 5)) for number in range(50)
    ]
    room.index.write(target, routed)
    delete(range(190, 200), 11 << 8)
    numbers = room.index.holdings.sequence_numbers(target)
    assert set(untouched(numbers)) == places(range(190)) | {composition.place for composition in routed}
    # Written again, with the same contents; gone; new; moved to another shard; and refused as older.
    rewritten, deleted = random.sample(range(90), 40), random.sample(range(90, 190), 40)
    for id_ in rewritten:
        room.write(target, range(id_, id_ + 1), version=12 << 8)
    delete(deleted, 12 << 8)
    room.write(target, range(195, 300), version=12 << 8)
    room.index.write(
        target,
        [composition._replace(version=12 << 8, routing=f"other {composition.routing}") for composition in routed[:20]],
    )
    late = [id_ for id_ in range(190) if id_ not in rewritten and id_ not in deleted]
    refused = [Composition(id=str(id_), version=9 << 8, source=SOURCE) for id_ in late[:30]]
    assert list(room.index.write(target, refused).done.values()) == ["skipped"] * 30
    for _ in range(2):
        unchanged = untouched(numbers)
        assert len(unchanged) == len(set(unchanged))
        assert set(unchanged) == places(late) | {composition.place for composition in routed[20:]}
        room.client.indices.forcemerge(index=target.index_name, max_num_segments=1)
        room.client.indices.flush(index=target.index_name)


SHARDS: dict[str, tuple[dict[str, Any], bool]] = {
    "one of two is away": ({"number_of_shards": 2, "routing.allocation.total_shards_per_node": 1}, False),
    "the only one is away": ({"routing.allocation.require._name": "nobody"}, False),
    "six replicas have no node": ({"number_of_shards": 3, "number_of_replicas": 2}, True),
}


@pytest.mark.parametrize("case", SHARDS)
def test_what_is_read_needs_every_shard_and_not_every_copy(room: Room, case: str) -> None:
    """The servers count copies, and call none failed that is nowhere: part of the documents is no answer."""
    settings, is_whole = SHARDS[case]
    target = Target.of(room.alias, 1)
    room.client.indices.create(
        index=target.index_name, settings={"number_of_replicas": 0} | settings, wait_for_active_shards="0"
    )
    room.client.cluster.health(wait_for_events="languid", wait_for_no_initializing_shards=True)
    holdings = room.index.holdings
    reads: list[Callable[[Target], object]] = [holdings.count, partial(holdings.find, ids=["a"])]
    reads.append(lambda target: list(holdings.ids(target, page=10)))
    # Of an index with a shard that is away, both servers answer to a refresh after a minute: a client gives up before.
    impatient = Index(room.client.options(request_timeout=3), bulk_bytes_max=8_000_000).holdings
    reads.append((holdings if is_whole else impatient).refresh)
    for read in reads:
        with nullcontext() if is_whole else pytest.raises((UnavailableError, ApiError, ConnectionTimeout)) as refused:
            read(target)
        assert refused is None or decide(refused.value) is Action.RETRY, refused


def test_a_shard_without_its_primary_is_not_taken_for_one_without_documents(room: Room) -> None:
    """Then nothing is known, and that is said; and a build takes nothing away."""
    target = Target.of(room.alias, 1)
    room.client.indices.create(
        index=target.index_name,
        settings={"number_of_replicas": 0, "routing.allocation.require._name": "nobody"},
        mappings={"_meta": {"syncer": OURS}},
        wait_for_active_shards="0",
    )
    with pytest.raises(IndexingError, match="primary"):
        room.index.holdings.sequence_numbers(target)
    assert room.build(1) != target
    assert target.index_name in room.names()
