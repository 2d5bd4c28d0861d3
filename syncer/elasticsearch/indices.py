"""Physical indices: creation, settings, aliases, deletion.

A physical index has two aliases: the search alias, and a write alias of its own. Writes name the write alias, so that
a late write never re-creates a dropped index. Its ``_meta`` names the document and the installation that owns it.

A new index has settings that suit a load, until `Indices.settle` restores its own, which ``_meta`` records. They cost
no write: it is only less often copied and shown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import elasticsearch
from elasticsearch import Elasticsearch

from syncer.base.error_policy import reason
from syncer.base.errors import IndexingError
from syncer.base.model import Target
from syncer.elasticsearch.reader import Holdings

GC_DELETES_SECONDS = 3600
"""How long our indices remember the version of a deleted document; Elasticsearch's default is 60."""

_UNITS = {"nanos": 1e-9, "micros": 1e-6, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
PIPELINES = ("index.default_pipeline", "index.final_pipeline")
"""Settings of an index that let an ingest pipeline change its documents, unless they are ``_none``."""
_REMEMBERS = {"index.gc_deletes": f"{GC_DELETES_SECONDS}s"}

# Without refreshes a load is 1.3 times as fast. Fewer merges, a translog that is synced less often and one that is
# flushed later made no measurable difference.
_NO_COPIES = {"index.number_of_replicas": 0, "index.auto_expand_replicas": False}
_LOAD = {**_NO_COPIES, "index.refresh_interval": -1}

_NOT_FOUND = 404
_LOOK_SECONDS = 0.5
_TRIAL_SECONDS_MAX = 600
"""How old a scratch index is, by its name, that no trial uses any more."""
# Settings that only Elasticsearch itself can set, or that depend on where the index is.
_PRIVATE = (
    *("index.uuid", "index.version.", "index.creation_date", "index.provided_name", "index.resize.", "index.history."),
    *("index.routing.allocation.", "index.blocks.", "index.lifecycle.", "index.verified_before_close"),
)


class Indices:
    """The physical indices of all documents."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client
        self._holdings = Holdings(client)

    # Creation and settings

    def create(
        self,
        *,
        document: str,
        alias: str,
        body: Mapping[str, Any],
        revision: int,
        installation: str,
        takes_over: bool = False,
        announce: Callable[[Target], object] = lambda _: None,
    ) -> Target:
        """Create a physical index with its write alias and with settings that suit a load. No search finds it yet.

        An existing index of that name is left alone, and the new one gets another name. But if it is this
        installation's, and the caller ``takes_over`` what the database no longer knows after a restore, it is changed
        to match ``body``. ``announce`` is called before the index exists.

        Raises:
            IndexingError: Elasticsearch refuses the settings or the mapping.
        """
        target, meta = Target.of(alias, revision), {"document": document, "installation": installation}
        if self.is_there(target):
            if takes_over and self._ours(target.index_name).get("installation") == installation:
                self.settle(target)
                if self.try_change(target, body) is None:
                    return target
            target = Target.of_index(f"{target.index_name}-{uuid4().hex[:8]}")
        announce(target)
        self._create(document, target, body, _REMEMBERS, meta)
        found = self._settings(target)
        # Recorded first, so that the settings to restore are known whatever happens. They may stem from a template.
        self._put_meta(target, {**meta, "settled": {name: found.get(name) for name in _LOAD}})
        self._put_settings(target, _LOAD)
        return target

    def _create(
        self,
        document: str,
        target: Target,
        body: Mapping[str, Any],
        settings: Mapping[str, Any],
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        mappings = dict(body.get("mappings", {}))
        if meta is not None:
            mappings["_meta"] = {**mappings.get("_meta", {}), "syncer": meta}
        try:
            self._client.indices.create(
                index=target.index_name,
                settings={**flat_settings(body.get("settings", {})), **settings},
                mappings=mappings,
                aliases={target.write_alias: {"is_hidden": True}},
            )
        except elasticsearch.BadRequestError as error:
            raise _refused(document, reason(error)) from error

    def is_settled(self, target: Target) -> bool:
        """Whether an index has its own settings, and not those of a load."""
        return "settled" not in self._ours(target.index_name)

    def settle(self, target: Target) -> None:
        """Give an index that was created for a load its own settings; any other keeps those it has. May be repeated."""
        ours = self._ours(target.index_name)
        if settings := ours.pop("settled", None):
            self._put_settings(target, settings)
            self._put_meta(target, ours)
        self._holdings.refresh(target)

    def require_healthy(self, target: Target, *, like: Target, seconds_max: float) -> None:
        """Wait until an index is as healthy as another one, and has every primary shard.

        Raises:
            IndexingError: It is not in this time.
        """
        deadline = time.monotonic() + seconds_max
        while True:
            # A wildcard, because a request for a missing index by name would wait for it.
            patterns = [f"{index.index_name}*" for index in (target, like)]
            answer = self._client.cluster.health(index=patterns, level="indices", filter_path="indices.*.status")
            health = {name: found["status"] for name, found in answer.body.get("indices", {}).items()}
            found = health.get(target.index_name, "red")
            wanted = "green" if health.get(like.index_name) == "green" else "yellow"
            if found in ("green", wanted):
                return
            if time.monotonic() >= deadline:
                raise IndexingError(
                    f"{target.index_name} is {found} after {seconds_max:,.0f} s, and should be {wanted}",
                    hint="Is a node down, or a disk full? Searches still use the current index. Run the command again.",
                )
            time.sleep(_LOOK_SECONDS)

    def change(self, *, document: str, target: Target, body: Mapping[str, Any]) -> None:
        """Update an existing index in place to match ``index.json``.

        Removing something has no effect until the index is rebuilt: a removed field keeps its mapping, but no document
        has it any more.

        Raises:
            IndexingError: Elasticsearch refuses: the change needs a new index.
        """
        self.settle(target)  # a load that was killed must not bring the settings of that time back later
        refusal = self.try_change(target, body)
        if refusal is not None:
            raise IndexingError(
                f"Elasticsearch refuses to change the index of {document} in place: {refusal}",
                hint="The active definition is unchanged. Run `syncer apply` again: it finds out what is needed.",
            )

    def try_change(self, target: Target, body: Mapping[str, Any]) -> str | None:
        """As `change`, but return Elasticsearch's reason if it refuses."""
        mappings = {key: value for key, value in body.get("mappings", {}).items() if key != "_meta"}
        wanted, found = {**flat_settings(body.get("settings", {})), **_REMEMBERS}, self._settings(target)
        settings = {name: value for name, value in wanted.items() if _as_returned(value) != found.get(name)}
        try:
            self._put_settings(target, settings)
            self._client.indices.put_mapping(index=target.index_name, body=mappings)
        except elasticsearch.BadRequestError as error:
            return reason(error)
        return None

    def body(self, target: Target) -> dict[str, Any]:
        """Return the current settings and mappings of an index in the form of index.json."""
        found = self._client.indices.get(index=target.index_name, flat_settings=True).body[target.index_name]
        settings = {name: value for name, value in found["settings"].items() if not name.startswith(_PRIVATE)}
        mappings = {name: value for name, value in found["mappings"].items() if name != "_meta"}
        return {"settings": settings, "mappings": mappings}

    def _settings(self, target: Target) -> dict[str, Any]:
        answer = self._client.indices.get_settings(index=target.index_name, flat_settings=True)
        found: dict[str, Any] = answer.body[target.index_name]["settings"]
        return found

    def _put_settings(self, target: Target, settings: Mapping[str, Any]) -> None:
        put = self._client.indices.put_settings
        if settings and not put(index=target.index_name, settings=settings)["acknowledged"]:
            raise IndexingError(
                f"Not every node has taken the settings of {target.index_name} in time", hint="Run the command again."
            )

    def _put_meta(self, target: Target, ours: Mapping[str, Any]) -> None:
        found = self._client.indices.get_mapping(index=target.index_name).body[target.index_name]["mappings"]
        self._client.indices.put_mapping(index=target.index_name, meta={**found.get("_meta", {}), "syncer": ours})

    def _ours(self, index_name: str) -> dict[str, Any]:
        """Return what syncer wrote into an index's ``_meta``; empty if it is not syncer's, or gone."""
        answer = self._client.options(ignore_status=_NOT_FOUND).indices.get_mapping(index=index_name)
        return _ours(answer.body[index_name]) if answer.meta.status != _NOT_FOUND else {}

    # Aliases

    def exists(self, target: Target, *, searched_as: str | None = None) -> bool:
        """Whether the index and its write alias exist, and it alone is found through the given search alias."""
        if searched_as is not None and self.searched(searched_as) != [target.index_name]:
            return False
        return bool(self._client.indices.exists_alias(index=target.index_name, name=target.write_alias))

    def is_there(self, target: Target) -> bool:
        """Whether the index exists, with aliases or without."""
        return bool(self._client.indices.exists(index=target.index_name))

    def searched(self, alias: str) -> list[str]:
        """Return the physical indices that a search through this alias finds."""
        return self._holdings.searched([alias])[alias]

    def swap(self, alias: str, to: Target) -> None:
        """Point the search alias at this index and no other, atomically. May be repeated.

        Raises:
            IndexingError: The index is gone, or the alias is someone else's.
        """
        installation = self._ours(to.index_name).get("installation")
        if installation is None:
            raise IndexingError(
                f"{to.index_name} is gone, and {alias} cannot point at it",
                hint="Was it deleted by hand? Searches find the same index as before.",
            )
        self.require_free(alias, installation)
        # One call, so that every search finds exactly one of the two. It also restores a lost write alias.
        self._client.indices.update_aliases(
            actions=[
                *(
                    {"remove": {"index": name, "alias": alias}}
                    for name in self.searched(alias)
                    if name != to.index_name
                ),
                {"add": {"index": to.index_name, "alias": alias}},
                {"add": {"index": to.index_name, "alias": to.write_alias, "is_hidden": True}},
            ]
        )

    def owned_elsewhere(self, alias: str, installation: str) -> Target | None:
        """Return the only index behind an alias, if another installation of syncer created it."""
        names = self.searched(alias)
        owners = [self._ours(name).get("installation", installation) for name in names]
        return Target.of_index(names[0]) if len(names) == 1 and owners != [installation] else None

    def take_over(self, target: Target, installation: str) -> None:
        """Make another installation's index this one's, to be replaced. From then on nobody writes to it."""
        self._put_settings(target, {"index.blocks.write": True})
        self._put_meta(target, {**self._ours(target.index_name), "installation": installation})

    def require_free(self, alias: str, installation: str, *, document: str = "") -> None:
        """Refuse an alias that is an index, or that points at someone else's.

        Raises:
            IndexingError: The alias is not free.
        """
        found = self._client.options(ignore_status=_NOT_FOUND).indices.get(index=alias)
        if found.meta.status == _NOT_FOUND:
            return
        for name, index in found.body.items():
            if name == alias:
                raise IndexingError(
                    f"{alias} is an index, and syncer needs the name for an alias",
                    hint="Name another alias in document.yaml, or delete that index.",
                )
            owner = _ours(index).get("installation")
            if owner != installation:
                hint = f"Name another alias in document.yaml, or delete the index {name} if it is unused."
                if owner and document:
                    hint = (
                        "If no other syncer writes it, as after `syncer migrate --anew`, replace it without a gap:\n"
                        f"syncer apply --take-over {document}\nIf another one does: {hint}"
                    )
                raise IndexingError(
                    f"The alias {alias} already points at {name}, which is not this database's", hint=hint
                )

    def hide(self, target: Target, alias: str) -> None:
        """Remove the search alias from an index that will be dropped. The index may be gone already.

        Raises:
            IndexingError: Another alias points at it; nothing was changed.
        """
        if alias in self._unused(target, but=alias):
            self._client.indices.update_aliases(actions=[{"remove": {"index": target.index_name, "alias": alias}}])

    def drop(self, target: Target) -> None:
        """Delete an index with its aliases. It may be gone already; one that merely has the name is left alone.

        Raises:
            IndexingError: An alias besides the write alias points at it.
        """
        if self._ours(target.index_name):
            self._unused(target)
            self._client.options(ignore_status=_NOT_FOUND).indices.delete(index=target.index_name)

    def _unused(self, target: Target, *, but: str | None = None) -> set[str]:
        """Return the aliases of an index; none if it is gone.

        Raises:
            IndexingError: It has others than its write alias and this one.
        """
        found = self._client.options(ignore_status=_NOT_FOUND).indices.get_alias(index=target.index_name)
        aliases = set() if found.meta.status == _NOT_FOUND else set(found.body[target.index_name]["aliases"])
        if others := aliases - {target.write_alias, but}:
            raise IndexingError(
                f"{target.index_name} is searched as {', '.join(sorted(others))}, and is not dropped",
                hint="Let the alias point at another index first.",
            )
        return aliases

    # Scratch indices, on which a trial writes documents that no search finds

    @contextmanager
    def scratch(
        self, *, document: str, alias: str, body: Mapping[str, Any], live: Target | None = None
    ) -> Iterator[Target]:
        """Create an empty hidden index from index.json, and delete it afterwards.

        With ``live``, it is a copy of that index, changed in place: only Elasticsearch can tell whether that is
        possible. Deletes also what killed trials have left.

        Raises:
            IndexingError: Elasticsearch refuses the settings or the mapping.
        """
        target = Target.of_index(f"{alias}-syncer-plan-{time.time():.0f}-{uuid4().hex[:8]}")
        try:
            self._create(document, target, self.body(live) if live else body, {**_NO_COPIES, "index.hidden": True})
            # Settings that a scratch index overrides, such as the number of replicas, have not been tried yet.
            if (refusal := self.try_change(target, body)) is not None:
                raise _refused(document, refusal.replace(target.index_name, live.index_name if live else alias))
            yield target
        finally:
            self._delete_scratch(target, alias)

    def obstacle(self, *, document: str, alias: str, body: Mapping[str, Any], live: Target) -> str | None:
        """Return why an index cannot be changed in place to match index.json; None if it can."""
        with self.scratch(document=document, alias=alias, body=self.body(live)) as target:
            refusal = self.try_change(target, body)
        return None if refusal is None else refusal.replace(target.index_name, live.index_name)

    def _delete_scratch(self, target: Target, alias: str) -> None:
        names = self._client.indices.get(
            index=f"{alias}-syncer-plan-*", expand_wildcards="all", filter_path="*.settings.index.hidden"
        ).body
        for name in names:
            since = re.fullmatch(r".*-syncer-plan-(\d+)-\w+", name)
            if name == target.index_name or (since and time.time() - int(since[1]) > _TRIAL_SECONDS_MAX):
                self._client.options(ignore_status=_NOT_FOUND).indices.delete(index=name)


def _ours(index: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = index["mappings"].get("_meta", {}).get("syncer", {})
    return found


def _refused(document: str, why: str) -> IndexingError:
    return IndexingError(
        f"Elasticsearch refuses the index.json of {document}: {why}",
        hint="Fix index.json: its settings and mappings are passed on unchanged.",
    )


def _as_returned(value: Any) -> Any:
    """Return a setting as Elasticsearch returns it: as a string, or a list of strings."""
    if isinstance(value, list):
        return [_as_returned(element) for element in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


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
