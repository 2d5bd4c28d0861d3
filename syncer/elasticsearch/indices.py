"""Physical indices: creation, settings, aliases, deletion.

A physical index has two aliases: the search alias, and a write alias of its own. Writes name the write alias, so that
a late write never re-creates a dropped index. Its ``_meta`` names the document and the installation that owns it.

An index built beside the current one serves no searches until the search alias moves, in one call. Until it is settled,
its settings suit a load; ``_meta`` records the settings that they replaced.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import elasticsearch
from elasticsearch import Elasticsearch

from syncer.base.error_policy import reason
from syncer.base.errors import IndexingError
from syncer.base.model import Target
from syncer.elasticsearch.reader import searched

GC_DELETES_SECONDS = 3600
"""How long our indices remember the version of a deleted document; Elasticsearch's default is 60."""

_UNITS = {"nanos": 1e-9, "micros": 1e-6, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
PIPELINES = ("index.default_pipeline", "index.final_pipeline")
"""Settings of an index that let an ingest pipeline change its documents, unless they are ``_none``."""
_REMEMBERS = {"index.gc_deletes": f"{GC_DELETES_SECONDS}s"}

# Settings for a load. Without refreshes a load is 1.3 times as fast. Fewer merges, a translog that is synced less often
# and one that is flushed later made no measurable difference.
_COPIES = {"index.number_of_replicas": 0, "index.auto_expand_replicas": False}
_PACE = {"index.refresh_interval": -1, "index.translog.durability": "async"}

_TEMPLATE = "syncer"
_NOT_FOUND = 404
_SEARCH_DOCUMENTS = 1000
_LOOK_SECONDS = 0.5
# Settings that only Elasticsearch itself can set, or that depend on where the index is.
_PRIVATE = (
    *("index.uuid", "index.version.", "index.creation_date", "index.provided_name", "index.resize.", "index.history."),
    *("index.routing.allocation.", "index.blocks.", "index.lifecycle.", "index.verified_before_close"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether an index can replace the current one in searches.

    Args:
        health: Its health: green, yellow or red.
        wanted: The current index's health, but at least yellow: every primary shard is available.
    """

    health: str
    wanted: str

    @property
    def is_ready(self) -> bool:
        """Whether its health is good enough."""
        return self.health in ("green", self.wanted)


class Indices:
    """The physical indices of all documents."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client

    def exists(self, target: Target, *, searched_as: str | None = None) -> bool:
        """Whether the index and its write alias exist, and it alone is found through the given search alias."""
        if searched_as is not None and self.searched(searched_as) != [target.index_name]:
            return False
        return bool(self._client.indices.exists_alias(index=target.index_name, name=target.write_alias))

    def has_other_shards(self, target: Target) -> bool:
        """Whether the index exists and has more than one shard."""
        name = "index.number_of_shards"
        found = self._client.indices.get_settings(
            index=target.index_name, name=name, flat_settings=True, ignore_unavailable=True
        )
        return any(int(one["settings"][name]) > 1 for one in found.body.values())

    def prepare(self) -> None:
        """Prevent a late delete from creating an index in place of an alias.

        ``require_alias`` has no effect on deletes, and a delete with an external version creates its index.
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
        revision: int,
        installation: str,
        announce: Callable[[Target], object] = lambda _: None,
    ) -> Target:
        """Create a physical index with its write alias, and point the search alias at it alone.

        An index left by an interrupted apply is re-created if it is empty, and updated if not. ``announce`` is called
        before the index exists.

        Raises:
            IndexingError: Elasticsearch refuses the settings or the mapping, or the alias is someone else's.
        """
        self.require_free(alias, installation)
        target = Target.of(alias, revision)
        if self._owner(target.index_name) == installation:
            if self._client.count(index=target.index_name).body["count"]:
                self.change(document=document, target=target, body=body)
                self.swap(alias, target)
                return target
            self._client.indices.delete(index=target.index_name)
        announce(target)
        self._create(document, target, body, meta=_meta(document, installation))
        # After a restore, the database may not know the index that is searched now.
        self.swap(alias, target)
        return target

    def _create(
        self,
        document: str,
        target: Target,
        body: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Create an index from index.json; one with an owner also remembers deletes for long enough."""
        settings, mappings = flat_settings(body.get("settings", {})), dict(body.get("mappings", {}))
        if meta is not None:
            settings |= _REMEMBERS
            mappings["_meta"] = {**mappings.get("_meta", {}), "syncer": meta}
        aliases = {target.write_alias: {"is_hidden": True}}
        try:
            self._client.indices.create(index=target.index_name, settings=settings, mappings=mappings, aliases=aliases)
        except elasticsearch.BadRequestError as error:
            raise refused(document, reason(error)) from error

    def restore_aliases(self, target: Target, alias: str) -> bool:
        """Restore the aliases of an index; return False if the index itself is gone.

        Raises:
            IndexingError: The alias is an index now, or belongs to someone else.
        """
        if not self._client.indices.exists(index=target.index_name):
            return False
        add = {"index": target.index_name, "alias": target.write_alias, "is_hidden": True}
        self._client.indices.update_aliases(actions=[{"add": add}])
        self.swap(alias, target)
        return True

    def change(self, *, document: str, target: Target, body: Mapping[str, Any]) -> None:
        """Update an existing index in place to match ``index.json``.

        Removing something has no effect until the index is rebuilt: a removed field keeps its mapping, but no document
        has it any more.

        Raises:
            IndexingError: Elasticsearch refuses: the change needs a new index.
        """
        refusal = self.try_change(target, body)
        if refusal is not None:
            raise IndexingError(
                f"Elasticsearch refuses to change the index of {document} in place: {refusal}",
                hint="The active definition is unchanged. Run `syncer apply` again: it finds out what is needed.",
            )

    def try_change(self, target: Target, body: Mapping[str, Any]) -> str | None:
        """As `change`, but return Elasticsearch's reason if it refuses."""
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

    # Building an index beside the current one

    def build(
        self,
        *,
        document: str,
        alias: str,
        body: Mapping[str, Any],
        revision: int,
        installation: str,
        announce: Callable[[Target], object] = lambda _: None,
    ) -> Target:
        """Create a physical index with its write alias only, and with settings that suit a load.

        Call this before the index is activated. An existing index of that name is left alone, and the new one gets
        another name; one that an interrupted call left is an orphan. ``announce`` is called before the index exists.

        Raises:
            IndexingError: Elasticsearch refuses the settings or the mapping.
        """
        target, meta = Target.of(alias, revision), _meta(document, installation)
        if self._client.indices.exists(index=target.index_name):
            target = Target.of_index(f"{target.index_name}-{uuid4().hex[:8]}")
        announce(target)
        self._create(document, target, body, meta=meta)
        load = {**_COPIES, **_PACE}
        found = self._settings(target)
        # Recorded first, so that the settings to restore are known whatever happens. They may stem from a template.
        self._put_meta(target, {**meta, "settled": {name: found.get(name) for name in load}})
        self._put_settings(target, load)
        return target

    def settle(
        self, target: Target, *, like: Target, seconds_max: float, pause: Callable[[float], None] = time.sleep
    ) -> Readiness:
        """Restore a built index's normal settings: make it durable and add its replicas.

        Args:
            target: An index that was built; any other keeps its settings. May be settled repeatedly.
            like: The index whose health it must reach: the current one.
            seconds_max: How long to wait for that.
            pause: How to wait; may raise `Stopping`.

        Returns:
            Its readiness; an index that is not ready in time can be settled again.

        Raises:
            IndexingError: A shard could not be refreshed or flushed.
        """
        ours = self._ours(target.index_name)
        settled = ours.get("settled", {})
        self._put_settings(target, {name: settled[name] for name in _PACE if name in settled})
        # From here on every write is durable when it is acknowledged; earlier writes become durable now.
        _require_all_shards(self._client.indices.refresh(index=target.index_name).body, target)
        _require_all_shards(self._client.indices.flush(index=target.index_name, wait_if_ongoing=True).body, target)
        # After the flush, so that replicas are created by copying files.
        self._put_settings(target, {name: settled[name] for name in _COPIES if name in settled})
        self._put_meta(target, {name: value for name, value in ours.items() if name != "settled"})
        deadline = time.monotonic() + seconds_max
        while not (found := self._readiness(target, like)).is_ready and time.monotonic() < deadline:
            pause(_LOOK_SECONDS)
        return found

    def _readiness(self, target: Target, like: Target) -> Readiness:
        # A wildcard, because a request for a missing index by name would wait for it.
        patterns = [f"{one.index_name}*" for one in (target, like)]
        answer = self._client.cluster.health(index=patterns, level="indices", filter_path="indices.*.status")
        health = answer.body.get("indices", {})
        found, wanted = (health.get(one.index_name, {}).get("status", "red") for one in (target, like))
        return Readiness(health=found, wanted="green" if wanted == "green" else "yellow")

    def swap(self, alias: str, to: Target) -> None:
        """Point the search alias at this index and no other, atomically.

        Raises:
            IndexingError: The index is gone, or the alias is someone else's.
        """
        installation = self._owner(to.index_name)
        if installation is None:
            raise IndexingError(
                f"{to.index_name} is gone, and {alias} cannot point at it",
                hint="Was it deleted by hand? Searches find the same index as before.",
            )
        self.require_free(alias, installation)
        before = self.searched(alias)
        if before == [to.index_name]:
            return
        # One call, so that every search finds exactly one of the two.
        self._client.indices.update_aliases(
            actions=[
                *({"remove": {"index": name, "alias": alias, "must_exist": True}} for name in before),
                {"add": {"index": to.index_name, "alias": alias}},
            ]
        )

    def searched(self, alias: str) -> list[str]:
        """Return the physical indices that a search through this alias finds."""
        return searched(self._client, [alias])[alias]

    def hide(self, target: Target, alias: str) -> None:
        """Remove the search alias from an index that will be dropped. The index may be gone already.

        Raises:
            IndexingError: Another alias points at it; nothing was changed.
        """
        aliases = self._aliases(target)
        self._require_unused(target, aliases - {alias})
        if alias in aliases:
            self._client.indices.update_aliases(actions=[{"remove": {"index": target.index_name, "alias": alias}}])

    def drop(self, target: Target) -> None:
        """Delete an index with its aliases. It may be gone already.

        Raises:
            IndexingError: An alias besides the write alias points at it.
        """
        self._require_unused(target, self._aliases(target))
        self._client.options(ignore_status=_NOT_FOUND).indices.delete(index=target.index_name)

    def _aliases(self, target: Target) -> set[str]:
        """Return the aliases of an index without its write alias; none if it is gone."""
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

    # Scratch indices: see `syncer.apply.scratch_index`

    @contextmanager
    def scratch(self, *, document: str, alias: str, body: Mapping[str, Any]) -> Iterator[Target]:
        """Create an empty hidden index from index.json; delete it afterwards.

        Also deletes scratch indices that earlier, interrupted calls left.

        Raises:
            IndexingError: Elasticsearch refuses the settings or the mapping.
        """
        target = Target.of_index(f"{alias}-syncer-plan-{uuid4().hex[:8]}")
        settings = {**flat_settings(body.get("settings", {})), "index.hidden": True, **_COPIES}
        try:
            self._create(document, target, {**body, "settings": settings})
            yield target
        finally:
            self._cleanup(alias)

    def ignored(self, target: Target) -> dict[str, list[str]]:
        """Return the fields of which a value is ignored, such as a text beyond ignore_above, with the ids."""
        self._client.indices.refresh(index=target.index_name)
        found = self._client.search(
            index=target.index_name,
            query={"exists": {"field": "_ignored"}},
            size=_SEARCH_DOCUMENTS,
            source=False,
            filter_path="hits.hits",
        )
        ids: dict[str, list[str]] = {}
        for hit in found.body.get("hits", {}).get("hits", []):
            for name in hit["_ignored"]:
                ids.setdefault(name, []).append(hit["_id"])
        return ids

    def _cleanup(self, alias: str) -> None:
        found = self._client.indices.get(
            index=f"{alias}-syncer-plan-*", expand_wildcards="all", filter_path="*.settings.index.hidden"
        )
        for name in found.body:
            self._client.options(ignore_status=_NOT_FOUND).indices.delete(index=name)

    def body(self, target: Target) -> dict[str, Any]:
        """Return the current settings and mappings of an index in the form of index.json."""
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
        """Refuse an alias that is an index, or that points at someone else's.

        Raises:
            IndexingError: The alias is not free.
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
                    hint=f"Name another alias in document.yaml, or delete the index {name} if it is unused.",
                )

    def _owner(self, index_name: str) -> str | None:
        owner: str | None = self._ours(index_name).get("installation")
        return owner

    def _ours(self, index_name: str) -> dict[str, Any]:
        """Return what syncer wrote into an index's ``_meta``; empty if it is not syncer's, or gone."""
        answer = self._client.options(ignore_status=_NOT_FOUND).indices.get_mapping(index=index_name)
        if answer.meta.status == _NOT_FOUND:
            return {}
        found: dict[str, Any] = answer.body[index_name]["mappings"].get("_meta", {}).get("syncer", {})
        return found


def _meta(document: str, installation: str) -> dict[str, Any]:
    return {"document": document, "installation": installation}


def _require_all_shards(answer: Mapping[str, Any], target: Target) -> None:
    failed = answer["_shards"]["failed"]
    if failed:
        raise IndexingError(
            f"{failed} shards of {target.index_name} could not be written to disk",
            hint="See Elasticsearch's log and its disk space, and do the same again.",
        )


def _as_elasticsearch_says(value: Any) -> Any:
    """Elasticsearch returns settings as strings, or lists of strings."""
    if isinstance(value, list):
        return [_as_elasticsearch_says(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def refused(document: str, why: str) -> IndexingError:
    """Return the error for an index.json that Elasticsearch refuses, for this reason."""
    return IndexingError(
        f"Elasticsearch refuses the index.json of {document}: {why}",
        hint="Fix index.json: its settings and mappings are passed on unchanged.",
    )


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return index settings by their full names, which begin with ``index.``, however they were nested."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{name}.")
        else:
            flat[f"index.{(prefix + name).removeprefix('index.')}"] = value
    return flat


def seconds(duration: str) -> float:
    """Return a duration that Elasticsearch writes, as in ``"1.5h"``; 0 if it has no unit."""
    found = re.fullmatch(r"(-?[0-9.]+)([a-z]+)", str(duration))
    return float(found[1]) * _UNITS.get(found[2], 0) if found else 0
