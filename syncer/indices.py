"""Physical indices in Elasticsearch: made, filled, changed, searched, dropped, with their aliases.

A physical index has two aliases: the one that searches use, and one of its own that writes name, so that a late
write never re-creates an index that was dropped. An index says in its ``_meta`` whose it is.

One that is built beside the one that serves is searched by nobody until the alias moves, in one call, and has settings
that suit a load until it is settled. It remembers in its ``_meta`` what they were instead of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import elasticsearch
from elasticsearch import Elasticsearch

from syncer.definition import flat_settings
from syncer.errors import IndexingError
from syncer.model import Target
from syncer.policy import reason

GC_DELETES_SECONDS = 3600
"""How long our indices remember the version of a deleted document; Elasticsearch's own default is 60."""

_REMEMBERS = {"index.gc_deletes": f"{GC_DELETES_SECONDS}s"}

# What a load does without. A load without refreshes is 1.3 times as fast; fewer merges, a translog that is synced less
# often and one that is flushed later gained nothing that could be measured.
_COPIES = {"index.number_of_replicas": 0, "index.auto_expand_replicas": False}
_PACE = {"index.refresh_interval": -1, "index.translog.durability": "async"}

_TEMPLATE = "syncer"
_NOT_FOUND = 404
_LOOK_SECONDS = 0.5
# Settings that Elasticsearch gives to an index and takes from nobody, or that say where it is.
_PRIVATE = (
    *("index.uuid", "index.version.", "index.creation_date", "index.provided_name", "index.resize.", "index.history."),
    *("index.routing.allocation.", "index.blocks.", "index.lifecycle.", "index.verified_before_close"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether an index can be searched as well as the one that serves.

    Args:
        health: What Elasticsearch says of it: green, yellow or red.
        wanted: What it says of the one that serves, and at least yellow: every primary shard is there.
    """

    health: str
    wanted: str

    @property
    def is_ready(self) -> bool:
        """Whether it is as well."""
        return self.health in ("green", self.wanted)


class Indices:
    """The physical indices of all documents."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client

    def exists(self, target: Target, *, searched_as: str | None = None) -> bool:
        """Whether the physical index is there, with the alias that writes name, and the one that searches use."""
        names = [target.write_alias] if searched_as is None else [target.write_alias, searched_as]
        return bool(self._client.indices.exists_alias(index=target.index_name, name=names))

    def has_other_shards(self, target: Target) -> bool:
        """Whether the physical index is there, with more than one shard."""
        name = "index.number_of_shards"
        found = self._client.indices.get_settings(
            index=target.index_name, name=name, flat_settings=True, ignore_unavailable=True
        )
        return any(int(one["settings"][name]) > 1 for one in found.body.values())

    def prepare(self) -> None:
        """Forbid that a late delete creates an index where an alias was.

        ``require_alias`` does not hold for deletes, and a delete with an external version creates its index.
        """
        self._client.indices.put_index_template(
            name=_TEMPLATE, index_patterns=["*-syncer-write"], allow_auto_create=False, priority=500
        )

    def create(
        self,
        *,
        document: str,
        alias: str,
        body: Mapping[str, Any],
        generation: int,
        installation: str,
        announce: Callable[[Target], object] = lambda _: None,
    ) -> Target:
        """Create a physical index, its write alias and the search alias, in one call.

        An index that an interrupted apply has left is made anew if it is empty, and brought up to date if not.

        Raises:
            IndexingError: Elasticsearch refuses the settings or the mapping, or the alias is someone else's.
        """
        self.require_free(alias, installation)
        target = Target.of(alias, generation)
        if self._owner(target.index_name) == installation:
            if self._client.count(index=target.index_name).body["count"]:
                self.change(document=document, target=target, body=body)
                return target
            self._client.indices.delete(index=target.index_name)
        announce(target)
        self._create(document, target, body, meta=_meta(document, installation), searched_as=alias)
        return target

    def _create(
        self,
        document: str,
        target: Target,
        body: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        searched_as: str | None = None,
    ) -> None:
        """Create an index as index.json wants it; one that is somebody's remembers deletes for long enough."""
        settings, mappings = flat_settings(body.get("settings", {})), dict(body.get("mappings", {}))
        if meta is not None:
            settings |= _REMEMBERS
            mappings["_meta"] = {**mappings.get("_meta", {}), "syncer": meta}
        aliases: dict[str, dict[str, Any]] = {target.write_alias: {"is_hidden": True}}
        if searched_as is not None:
            aliases[searched_as] = {}
        try:
            self._client.indices.create(index=target.index_name, settings=settings, mappings=mappings, aliases=aliases)
        except elasticsearch.BadRequestError as error:
            raise _refused(document, error) from error

    def restore_aliases(self, target: Target, alias: str) -> bool:
        """Give an index its aliases back; False if the index itself is gone.

        Raises:
            IndexingError: The alias is an index now, or somebody else's.
        """
        if not self._client.indices.exists(index=target.index_name):
            return False
        add = {"index": target.index_name, "alias": target.write_alias, "is_hidden": True}
        self._client.indices.update_aliases(actions=[{"add": add}])
        self.swap(alias, target)
        return True

    def change(self, *, document: str, target: Target, body: Mapping[str, Any]) -> None:
        """Bring an existing index up to what ``index.json`` says, in place.

        What it no longer says stays as it was until the index is made anew: a field that has been removed keeps its
        mapping, and no document has it any more.

        Raises:
            IndexingError: Elasticsearch refuses: the change needs a new index.
        """
        refusal = self.try_change(target, body)
        if refusal is not None:
            raise IndexingError(
                f"Elasticsearch refuses to change the index of {document} in place: {refusal}",
                hint="What was in force is in force still. Run `syncer apply` again: it finds out what is needed.",
            )

    def try_change(self, target: Target, body: Mapping[str, Any]) -> str | None:
        """The same, with what Elasticsearch says if it refuses."""
        mappings = {key: value for key, value in body.get("mappings", {}).items() if key != "_meta"}
        wanted = {**flat_settings(body.get("settings", {})), **_REMEMBERS}
        settings = self._changed_settings(target, wanted)
        try:
            if settings:
                self._client.indices.put_settings(index=target.index_name, settings=settings)
            self._client.indices.put_mapping(index=target.index_name, body=mappings)
        except elasticsearch.BadRequestError as error:
            return reason(error)
        return None

    # An index that is built beside the one that serves

    def build(
        self,
        *,
        document: str,
        alias: str,
        body: Mapping[str, Any],
        generation: int,
        installation: str,
        announce: Callable[[Target], object] = lambda _: None,
    ) -> Target:
        """Create a physical index with its write alias only, and with settings that suit a load.

        To be called before the index is put in force: one of this generation that an interrupted call has left, and
        nothing was ever written to, is made anew. Any other that has its name stays as it is, and this one gets
        another name. ``announce`` is told of it before it is there, as it is by `create`.

        Raises:
            IndexingError: Elasticsearch refuses the settings or the mapping.
        """
        target, meta = Target.of(alias, generation), _meta(document, installation)
        if meta.items() <= self._ours(target.index_name).items() and self._is_untouched(target):
            self.drop(target)
        elif self._client.indices.exists(index=target.index_name):
            target = Target.of_index(f"{target.index_name}-{uuid4().hex[:8]}")
        announce(target)
        self._create(document, target, body, meta=meta)
        load = {**_COPIES, **_PACE}
        found = self._settings(target)
        # Remembered first: whatever happens, it is known what to put back, be it index.json's or a template's.
        self._put_meta(target, {**meta, "settled": {name: found.get(name) for name in load}})
        self._put_settings(target, load)
        return target

    def settle(
        self, target: Target, *, like: Target, seconds_max: float, pause: Callable[[float], None] = time.sleep
    ) -> Readiness:
        """Give a built index the settings back that it would have without a load; make it durable, and its replicas.

        Args:
            target: An index that was built; any other keeps its settings. It can be settled again.
            like: An index whose health it is to reach: the one that serves.
            seconds_max: How long to wait for that.
            pause: How to wait; may raise `Stopping`.

        Returns:
            How it is; what is not ready in time can be settled again.

        Raises:
            IndexingError: A shard could not be refreshed or flushed.
        """
        ours = self._ours(target.index_name)
        settled = ours.get("settled", {})
        self._put_settings(target, {name: settled[name] for name in _PACE if name in settled})
        # From here on every write is durable when it is answered; what came before becomes so now.
        _require_all_shards(self._client.indices.refresh(index=target.index_name).body, target)
        _require_all_shards(self._client.indices.flush(index=target.index_name, wait_if_ongoing=True).body, target)
        # After the flush, so that replicas are copies of files.
        self._put_settings(target, {name: settled[name] for name in _COPIES if name in settled})
        self._put_meta(target, {name: value for name, value in ours.items() if name != "settled"})
        deadline = time.monotonic() + seconds_max
        while not (found := self._readiness(target, like)).is_ready and time.monotonic() < deadline:
            pause(_LOOK_SECONDS)
        return found

    def _readiness(self, target: Target, like: Target) -> Readiness:
        # By pattern, since one that is gone is waited for when it is named.
        patterns = [f"{one.index_name}*" for one in (target, like)]
        answer = self._client.cluster.health(index=patterns, level="indices", filter_path="indices.*.status")
        health = answer.body.get("indices", {})
        found, wanted = (health.get(one.index_name, {}).get("status", "red") for one in (target, like))
        return Readiness(health=found, wanted="green" if wanted == "green" else "yellow")

    def swap(self, alias: str, to: Target) -> None:
        """Let searches find this index and no other, from one moment to the next.

        Raises:
            IndexingError: The index is gone, or the alias is someone else's.
        """
        installation = self._owner(to.index_name)
        if installation is None:
            raise IndexingError(
                f"{to.index_name} is gone, and {alias} cannot point at it",
                hint="Was it deleted by hand? What was searched before is searched still.",
            )
        self.require_free(alias, installation)
        before = self.searched(alias)
        if before == [to.index_name]:
            return
        # One call: a search meets either the one or the other.
        self._client.indices.update_aliases(
            actions=[
                *({"remove": {"index": name, "alias": alias, "must_exist": True}} for name in before),
                {"add": {"index": to.index_name, "alias": alias}},
            ]
        )

    def searched(self, alias: str) -> list[str]:
        """The physical indices that a search through this alias finds."""
        found = self._client.options(ignore_status=_NOT_FOUND).indices.get_alias(name=alias)
        return sorted(found.body) if found.meta.status != _NOT_FOUND else []

    def hide(self, target: Target, alias: str) -> None:
        """Let no search through this alias find an index that is to be dropped; it may be gone already.

        Raises:
            IndexingError: Something else has an alias to it too; nothing was changed.
        """
        aliases = self._aliases(target)
        self._require_unused(target, aliases - {alias})
        if alias in aliases:
            self._client.indices.update_aliases(actions=[{"remove": {"index": target.index_name, "alias": alias}}])

    def drop(self, target: Target) -> None:
        """Delete an index with its aliases; it may be gone already.

        Raises:
            IndexingError: Something besides syncer's own writes has an alias to it.
        """
        self._require_unused(target, self._aliases(target))
        self._client.options(ignore_status=_NOT_FOUND).indices.delete(index=target.index_name)

    def _aliases(self, target: Target) -> set[str]:
        """The aliases to an index, besides the one that writes name; none if it is gone."""
        found = self._client.options(ignore_status=_NOT_FOUND).indices.get_alias(index=target.index_name)
        if found.meta.status == _NOT_FOUND:
            return set()
        return set(found.body[target.index_name]["aliases"]) - {target.write_alias}

    def _require_unused(self, target: Target, aliases: set[str]) -> None:
        if aliases:
            raise IndexingError(
                f"{target.index_name} is searched as {', '.join(sorted(aliases))}, and is not dropped",
                hint="Let the alias point at another index first.",
            )

    def _is_untouched(self, target: Target) -> bool:
        """Whether nothing was ever written to an index, not even a delete, as far as every shard can be asked."""
        stats = self._client.indices.stats(index=target.index_name, level="shards", metric="docs").body
        shards = stats["indices"].get(target.index_name, {}).get("shards", {})
        are_all_there = len(shards) == int(self._settings(target)["index.number_of_shards"])
        return are_all_there and all(copy["seq_no"]["max_seq_no"] < 0 for copies in shards.values() for copy in copies)

    def _settings(self, target: Target) -> dict[str, Any]:
        answer = self._client.indices.get_settings(index=target.index_name, flat_settings=True)
        found: dict[str, Any] = answer.body[target.index_name]["settings"]
        return found

    def _put_settings(self, target: Target, settings: Mapping[str, Any]) -> None:
        if not settings:
            return
        answer = self._client.indices.put_settings(index=target.index_name, settings=settings).body
        if not answer["acknowledged"]:
            raise IndexingError(
                f"Not every node has taken the settings of {target.index_name} in time", hint="Do the same again."
            )

    def _put_meta(self, target: Target, ours: Mapping[str, Any]) -> None:
        found = self._client.indices.get_mapping(index=target.index_name).body[target.index_name]["mappings"]
        meta = {**found.get("_meta", {}), "syncer": ours}
        self._client.indices.put_mapping(index=target.index_name, meta=meta)

    # Scratch indices: see `syncer.trial`

    @contextmanager
    def scratch(self, *, document: str, alias: str, body: Mapping[str, Any]) -> Iterator[Target]:
        """An empty index that no search sees, as index.json wants it; gone afterwards.

        What an earlier one has left, that could not clean up after itself, goes away with it.

        Raises:
            IndexingError: Elasticsearch refuses the settings or the mapping.
        """
        target = Target.of_index(f"{alias}-syncer-plan-{uuid4().hex[:8]}")
        settings = {**flat_settings(body.get("settings", {})), "index.hidden": True, **_COPIES}
        try:
            self._create(document, target, {**body, "settings": settings})
            yield target
        finally:
            self._sweep(alias)

    def _sweep(self, alias: str) -> None:
        found = self._client.indices.get(
            index=f"{alias}-syncer-plan-*", expand_wildcards="all", filter_path="*.settings.index.hidden"
        )
        for name in found.body:
            self._client.options(ignore_status=_NOT_FOUND).indices.delete(index=name)

    def body(self, target: Target) -> dict[str, Any]:
        """The settings and mappings that an index has now, such as index.json would say them."""
        found = self._client.indices.get(index=target.index_name, flat_settings=True).body[target.index_name]
        settings = {name: value for name, value in found["settings"].items() if not name.startswith(_PRIVATE)}
        mappings = {name: value for name, value in found["mappings"].items() if name != "_meta"}
        return {"settings": settings, "mappings": mappings}

    def _changed_settings(self, target: Target, wanted: Mapping[str, Any]) -> dict[str, Any]:
        current = self._settings(target)
        return {
            name: value
            for name, value in flat_settings(wanted).items()
            if _as_elasticsearch_says(value) != current.get(name)
        }

    def require_free(self, alias: str, installation: str) -> None:
        """Refuse an alias that is an index, or that names somebody else's.

        Raises:
            IndexingError: It is.
        """
        try:
            found = self._client.indices.get(index=alias).body
        except elasticsearch.NotFoundError:
            return
        for name in found:
            if name == alias:
                raise IndexingError(
                    f"{alias} is an index, and syncer needs the name for an alias",
                    hint="Name another alias in document.yaml, or delete that index.",
                )
            if self._owner(name) != installation:
                raise IndexingError(
                    f"The alias {alias} already points at {name}, which is not this database's",
                    hint=f"Name another alias in document.yaml, or delete the index {name} if nobody needs it.",
                )

    def _owner(self, index_name: str) -> str | None:
        owner: str | None = self._ours(index_name).get("installation")
        return owner

    def _ours(self, index_name: str) -> dict[str, Any]:
        """What syncer has written into an index's ``_meta``; empty if it is somebody else's, or gone."""
        found = self._client.options(ignore_status=_NOT_FOUND).indices.get_mapping(index=index_name)
        return _in_meta(found.body[index_name]) if found.meta.status != _NOT_FOUND else {}


def _meta(document: str, installation: str) -> dict[str, Any]:
    return {"document": document, "installation": installation}


def _in_meta(body: Mapping[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = body["mappings"].get("_meta", {}).get("syncer", {})
    return meta


def _require_all_shards(answer: Mapping[str, Any], target: Target) -> None:
    failed = answer["_shards"]["failed"]
    if failed:
        raise IndexingError(
            f"{failed} shards of {target.index_name} could not be written to disk",
            hint="See Elasticsearch's log and its disk space, and do the same again.",
        )


def _as_elasticsearch_says(value: Any) -> Any:
    """Settings come back as strings, or lists of them."""
    if isinstance(value, list):
        return [_as_elasticsearch_says(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(document: str, error: elasticsearch.ApiError) -> IndexingError:
    return IndexingError(
        f"Elasticsearch refuses the index.json of {document}: {reason(error)}",
        hint="Settings and mappings are passed on as they stand in index.json.",
    )
