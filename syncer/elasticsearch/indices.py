"""Physical indices: creation, settings, aliases, deletion.

A physical index has two aliases: the search alias, and a write alias of its own, so that a late write never re-creates
a dropped index. The name of the write alias ends with the epoch: see `syncer.elasticsearch.bulk`. The ``_meta`` of an
index names the document, and the installation that owns it. A new index has settings that suit a load, until
`Indices.settle` restores its own, which ``_meta`` records: it is only less often copied and shown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import elasticsearch
from elasticsearch import Elasticsearch

from syncer.base.error_policy import answerer, reason
from syncer.base.errors import IndexingError
from syncer.base.model import WRITE_SUFFIX, Target
from syncer.elasticsearch.client import product
from syncer.elasticsearch.reader import Holdings, index_metadata
from syncer.elasticsearch.shortcomings import GC_DELETES_SECONDS, Effect, Shortcoming, find, metadata_block

_REMEMBERS = {"index.gc_deletes": f"{GC_DELETES_SECONDS}s"}

# Without refreshes a load is 1.3 times as fast. Fewer merges, a translog that is synced less often and one that is
# flushed later made no measurable difference.
_NO_COPIES = {"index.number_of_replicas": 0, "index.auto_expand_replicas": False}
_WAITS = "index.write.wait_for_active_shards"
_LOAD = {**_NO_COPIES, _WAITS: 1, "index.refresh_interval": -1}

_FORBIDDEN, _NOT_FOUND = 403, 404
_LOOK_SECONDS = 0.5
_SCRATCH = "-syncer-plan-"
_TRIAL_SECONDS_MAX = 600
"""How old a scratch index is, by its name, that no trial uses any more."""
_CLEANUP_TIMEOUT_SECONDS = 5.0
_ROUTING_SHARDS = "index.number_of_routing_shards"
WRITES = {"is_hidden": True, "is_write_index": True}
"""A write alias: Elasticsearch lets no other index, as from a restore, become the one that is written to."""
_OWN_SETTINGS = {"number_of_shards": 1, "auto_expand_replicas": "0-1", "hidden": True}
_OWN_SETTINGS |= {"default_pipeline": "_none", "final_pipeline": "_none"}
# Settings that only Elasticsearch itself can set, or that depend on where the index is.
_PRIVATE = (
    *("index.uuid", "index.version.", "index.creation_date", "index.provided_name", "index.resize.", "index.history."),
    *("index.routing.allocation.", "index.blocks.", "index.lifecycle.", "index.verified_before_close"),
    "index.remote_store.",
)


class Indices:
    """The physical indices of all documents."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client
        self._holdings = Holdings(client)

    def create(
        self,
        *,
        document: str,
        alias: str,
        body: Mapping[str, Any],
        revision: int,
        installation: str,
        epoch: int,
        takes_over: bool = False,
        replaced: Target | None = None,
        announce: Callable[[Target], object] = lambda _: None,
    ) -> Target:
        """Create a physical index with its write alias and with settings that suit a load. No search finds it yet.

        An existing index of that name is left alone, and the new one gets another name. But if it is this
        installation's, and the caller ``takes_over`` what the database no longer knows after a restore, it is changed
        to match ``body``. ``announce`` is called before the index exists; ``replaced`` is the index that it replaces.
        """
        target = Target.of_index(Target.of(alias, revision).index_name, epoch)
        meta = {"document": document, "installation": installation}
        if self._client.indices.exists(index=target.index_name):
            if takes_over and self._meta(target.index_name).get("installation") == installation:
                self.settle(target)
                if self.try_change(target, body) is None:
                    return target
            target = Target.of_index(f"{target.index_name}-{uuid4().hex[:8]}", epoch)
        announce(target)
        self._create(document, target, body, meta)
        index, _ = self._inspect(target, target.index_name)
        settings, aliases = index["settings"], {"aliases": index["aliases"]} if index["aliases"] else {}
        # Recorded first, so that the settings to restore are known whatever happens. They may stem from a template.
        self._put_meta(target, {**meta, "settled": {name: settings.get(name) for name in _LOAD}, **aliases})
        self._put_without_copies(target, _LOAD, settings)
        if replaced is not None:
            self._require_aliases_fit(replaced, target)
        return target

    def _inspect(
        self, target: Target, shown: str, *, has_routing: bool = True
    ) -> tuple[dict[str, Any], list[Shortcoming]]:
        """Remove the aliases that templates have added to a new index; return it with them alone, and its shortcomings.

        Raises:
            IndexingError: It would not keep documents as they are written. The message calls it ``shown``.
        """
        answer = self._holdings.described(target)
        shortcomings, index = list(find(target, answer, has_routing=has_routing)), answer[target.index_name]
        index["aliases"].pop(target.write_alias, None)
        if index["aliases"]:  # while it is empty, so that no search finds a document twice
            removals = [removal(target.index_name, alias) for alias in index["aliases"]]
            self._client.indices.update_aliases(actions=removals)
        for shortcoming in shortcomings:
            if shortcoming.effect in (Effect.REFUSES, Effect.ALTERS):
                raise IndexingError(shortcoming.problem.replace(target.index_name, shown), hint=shortcoming.advice)
        return index, shortcomings

    def _require_aliases_fit(self, replaced: Target, target: Target) -> None:
        """Refuse a new index that an alias cannot move to, before it is loaded: its filter may need another mapping."""
        for alias, properties in self._aliases(replaced.index_name).items():
            if "filter" in properties:
                query = {"index": target.index_name, "query": properties["filter"], "explain": True}
                answer = self._client.indices.validate_query(**query).body
                if not answer["valid"]:
                    why = "".join(explanation.get("error", "") for explanation in answer.get("explanations", ()))
                    problem = f"The alias {alias} cannot move to the new index, which refuses its filter: {why}"
                    advice = "Change or remove the alias, or keep in index.json what it filters by."
                    raise IndexingError(problem, hint=f"{advice} Searches still use the current index.")

    def _create(
        self, document: str, target: Target, body: Mapping[str, Any], meta: Mapping[str, Any] | None = None
    ) -> None:
        """Create an index with its write alias, and with what templates add."""
        mappings = dict(body.get("mappings", {}))
        if meta is not None:
            mappings["_meta"] = {**mappings.get("_meta", {}), "syncer": meta}
        try:
            self._client.indices.create(
                index=target.index_name,
                settings={**_REMEMBERS, **flat_settings(body.get("settings", {}))},
                mappings=mappings,
                aliases={target.write_alias: WRITES},
                wait_for_active_shards=1,
            )
        except elasticsearch.BadRequestError as error:
            raise self._refusal(document, target, error) from error

    def _refusal(self, document: str, target: Target, error: elasticsearch.BadRequestError) -> IndexingError:
        """Return why no index can be created from index.json, and whether it would be without."""
        try:
            self._client.indices.create(index=target.index_name)
        except elasticsearch.BadRequestError:
            hint = "index.json is not the reason: it refuses that index without settings and mappings, too. See the\n"
            hint += "cluster's index templates and limits."
            problem = f"{answerer(error)} refuses to create an index for {document}: {reason(error)}"
            return IndexingError(problem, hint=hint)
        self._client.indices.delete(index=target.index_name)
        return _refused(document, reason(error))

    def is_settled(self, target: Target) -> bool:
        """Whether an index has its own settings, and not those of a load."""
        return "settled" not in self._meta(target.index_name)

    def settle(self, target: Target) -> None:
        """Give an index that was created for a load its own settings; any other keeps those it has. May be repeated."""
        ours = self._meta(target.index_name)
        if settings := ours.pop("settled", None):
            self._put_settings(target, settings)
            self._put_meta(target, ours)
        self._holdings.refresh(target)

    def require_healthy(self, target: Target, *, like: Target, seconds_max: float) -> None:
        """Wait until an index is as healthy as another one, and has every primary shard; refuse it if it does not."""
        deadline = time.monotonic() + seconds_max
        while True:
            # A wildcard, because a request for a missing index by name would wait for it.
            patterns = [f"{index.index_name}*" for index in (target, like)]
            answer = self._client.cluster.health(index=patterns, level="indices", filter_path="indices.*.status")
            colours = {name: health["status"] for name, health in answer.body.get("indices", {}).items()}
            colour = colours.get(target.index_name, "red")
            required = "green" if colours.get(like.index_name) == "green" else "yellow"
            if colour in ("green", required):
                return
            if time.monotonic() >= deadline:
                problem = f"{target.index_name} is {colour} after {seconds_max:,.0f} s, and should be {required}"
                hint = "Is a node down, or a disk full? Searches still use the current index. Run the command again."
                raise IndexingError(problem, hint=hint)
            time.sleep(_LOOK_SECONDS)

    def change(self, *, document: str, target: Target, body: Mapping[str, Any]) -> None:
        """Update an existing index in place to match ``index.json``. What is removed there stays until a rebuild."""
        self.settle(target)  # a load that was killed must not bring the settings of that time back later
        if refusal := self.try_change(target, body):
            hint = "The active definition is unchanged. Run `syncer apply` again: it finds out what is needed."
            problem = f"{product(self._client).name} refuses to change the index of {document} in place: {refusal}"
            raise IndexingError(problem, hint=hint)

    def try_change(self, target: Target, body: Mapping[str, Any]) -> str | None:
        """As `change`, but return Elasticsearch's reason if it refuses."""
        mappings = {key: value for key, value in body.get("mappings", {}).items() if key != "_meta"}
        desired, current = {**_REMEMBERS, **flat_settings(body.get("settings", {}))}, self._settings(target)
        if _ROUTING_SHARDS in desired:
            current |= self._routing_shards(target)
        settings = {name: value for name, value in desired.items() if _as_returned(value) != current.get(name)}
        try:
            self._put_settings(target, settings)
            self._put_mapping(target, lambda _: mappings)
        except elasticsearch.BadRequestError as error:
            return reason(error)
        return None

    def body(self, target: Target) -> dict[str, Any]:
        """Return the current settings and mappings of an index in the form of index.json."""
        index = self._client.indices.get(index=target.index_name, flat_settings=True).body[target.index_name]
        settings = {name: value for name, value in index["settings"].items() if not name.startswith(_PRIVATE)}
        mappings = {name: value for name, value in index["mappings"].items() if name != "_meta"}
        return {"settings": {**settings, **self._routing_shards(target)}, "mappings": mappings}

    def _routing_shards(self, target: Target) -> dict[str, str]:
        """Return the one setting that Elasticsearch does not return as such."""
        metadata = index_metadata(self._client, target.index_name, "routing_num_shards")[target.index_name]
        return {_ROUTING_SHARDS: str(metadata["routing_num_shards"])}

    def _settings(self, target: Target) -> dict[str, Any]:
        answer = self._client.indices.get_settings(index=target.index_name, flat_settings=True)
        return dict(answer.body[target.index_name]["settings"])

    def _put_settings(self, target: Target, settings: Mapping[str, Any]) -> None:
        put = self._client.indices.put_settings
        if settings and not put(index=target.index_name, settings=settings)["acknowledged"]:
            problem = f"Not every node has taken the settings of {target.index_name} in time"
            raise IndexingError(problem, hint="Run the command again.")

    def _put_without_copies(self, target: Target, settings: Mapping[str, Any], current: Mapping[str, Any]) -> None:
        """Put settings with which an index has no replicas; a write to it waits for none."""
        # In a request of its own: the number of replicas is compared with what was set before.
        if current.get(_WAITS, "1") != "1":
            self._put_settings(target, {_WAITS: 1})
        self._put_settings(target, {_WAITS: 1, **settings})

    def _put_meta(self, target: Target, ours: Mapping[str, Any]) -> None:
        self._put_mapping(target, lambda mappings: {"_meta": {**mappings.get("_meta", {}), "syncer": ours}})

    def _put_mapping(self, target: Target, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Put what the change makes of the current mapping."""
        mappings = self._client.indices.get_mapping(index=target.index_name).body[target.index_name]["mappings"]
        # Without it, OpenSearch understands that "enabled" is to become true, and refuses.
        unchanged = {"enabled": mappings["enabled"]} if "enabled" in mappings else {}
        self._client.indices.put_mapping(index=target.index_name, body={**unchanged, **change(mappings)})

    def _meta(self, index_name: str) -> dict[str, Any]:
        """Return what syncer wrote into an index's ``_meta``; empty if it is not syncer's, or gone."""
        metadata = index_metadata(self._client, index_name, "mappings._doc._meta.syncer")
        return dict(metadata[index_name]["mappings"]["_doc"]["_meta"]["syncer"]) if index_name in metadata else {}

    def has_aliases(self, target: Target, *, searched_as: str | None = None) -> bool:
        """Whether the index exists with its write alias, and it alone is found through the given search alias."""
        if searched_as is not None and self.searched(searched_as) != [target.index_name]:
            return False
        return target.index_name in self.searched(target.write_alias)

    def is_own(self, target: Target) -> bool:
        """Whether syncer's index of that name exists; another index, or an alias, may have the name."""
        return bool(self._meta(target.index_name))

    def searched(self, alias: str) -> list[str]:
        """Return the physical indices that a search through this alias finds."""
        return self._holdings.searched([alias])[alias]

    def swap(self, alias: str, to: Target) -> None:
        """Point the search alias at this index and no other, atomically. May be repeated."""
        installation = self._meta(to.index_name).get("installation")
        if installation is None:
            hint = "Was it deleted by hand? Searches find the same index as before."
            raise IndexingError(f"{to.index_name} is gone, and {alias} cannot point at it", hint=hint)
        self.require_free(alias, installation)
        # What the index before is searched as, the new one is, too, with the same filters and routings.
        added = {alias: {}, **self._meta(to.index_name).get("aliases", {})}
        actions: list[dict[str, Any]] = []
        for index_name in self.searched(alias):
            if index_name != to.index_name:
                aliases = self._aliases(index_name).items()
                inherited = {name: properties for name, properties in aliases if not is_write_alias(name)}
                actions += [removal(index_name, name) for name in inherited]
                added |= inherited
        existing = self._aliases(to.index_name)
        added = {name: properties for name, properties in added.items() if name not in existing}
        write_aliases = [name for name in existing if is_write_alias(name)]
        # A caller may have stalled: it does not undo the fence of a later epoch.
        if all(_epoch(name) <= _epoch(to.write_alias) for name in write_aliases):
            actions += [removal(to.index_name, name) for name in write_aliases if name != to.write_alias]
            added[to.write_alias] = WRITES
        # One call, so that every search finds exactly one of the two. It also restores a lost write alias.
        actions += [{"add": {"index": to.index_name, "alias": name, **added[name]}} for name in added]
        if actions:
            self._client.indices.update_aliases(actions=actions)

    def _aliases(self, index_name: str) -> dict[str, Any]:
        """Return the aliases of an index with their properties; none if it is gone."""
        try:
            answer = self._client.options(ignore_status=_NOT_FOUND).indices.get_alias(index=index_name)
        except elasticsearch.AuthorizationException as error:
            if (block := metadata_block(index_name, error)) is None:
                raise
            raise IndexingError(block.problem, hint=block.hint) from error
        return {} if answer.meta.status == _NOT_FOUND else dict(answer.body[index_name]["aliases"])

    def owned_elsewhere(self, alias: str, installation: str) -> str | None:
        """Return the name of the only index behind an alias, if another installation of syncer created it."""
        names = self.searched(alias)
        is_other = len(names) == 1 and self._meta(names[0]).get("installation", installation) != installation
        return names[0] if is_other else None

    def require_own(self, targets: Iterable[Target], installation: str) -> None:
        """Refuse indices that another installation of syncer created."""
        for target in targets:
            if self._meta(target.index_name).get("installation", installation) != installation:
                problem = f"The index {target.index_name} is not this database's: nothing is written to it"
                hint = "Was a dump restored without its schema syncer? `syncer apply` says how to replace the index."
                raise IndexingError(problem, hint=hint)

    def take_over(self, target: Target, installation: str) -> None:
        """Make another installation's index this one's, to be replaced. From then on it takes no writes."""
        self._put_settings(target, {"index.blocks.write": True})
        self._put_meta(target, {**self._meta(target.index_name), "installation": installation})

    def require_free(self, alias: str, installation: str, *, document: str = "") -> None:
        """Refuse an alias that is an index, or that points at one of another installation."""
        answer = self._client.options(ignore_status=_NOT_FOUND).indices.get(index=alias)
        if answer.meta.status == _NOT_FOUND:
            return
        for name, index in answer.body.items():
            if name == alias:
                hint = "Name another alias in document.yaml, or delete that index."
                raise IndexingError(f"{alias} is an index, and syncer needs the name for an alias", hint=hint)
            owner = index["mappings"].get("_meta", {}).get("syncer", {}).get("installation")
            if owner != installation:
                hint = f"name another alias in document.yaml, or delete the index {name} if it is unused."
                if owner and document:
                    hint = (
                        "If no other syncer writes it, as after `syncer migrate --anew`, replace it without a gap:\n"
                        f"syncer apply --take-over {document}\nIf another one does, {hint}"
                    )
                problem = f"The alias {alias} already points at {name}, which is not this database's"
                raise IndexingError(problem, hint=hint[0].upper() + hint[1:])

    def hide(self, target: Target, alias: str) -> None:
        """Remove the search alias from an index that will be dropped; refuse if it has another. It may be gone."""
        if alias in self._require_unused(target, but=alias):
            self._client.indices.update_aliases(actions=[removal(target.index_name, alias)])

    def drop(self, target: Target) -> None:
        """Delete an index that no search alias points at. It may be gone; another that has the name is left alone."""
        if self._meta(target.index_name):
            self._require_unused(target)
            self._client.options(ignore_status=_NOT_FOUND).indices.delete(index=target.index_name)

    def _require_unused(self, target: Target, *, but: str | None = None) -> set[str]:
        """Return the aliases of an index, if it has no others than its write alias and this one."""
        aliases = set(self._aliases(target.index_name))
        if searched := sorted(a for a in aliases - {but} if not is_write_alias(a)):
            problem = f"{target.index_name} is searched as {', '.join(searched)}, and is not dropped"
            raise IndexingError(problem, hint="Let the alias point at another index first.")
        return aliases

    # Scratch indices, on which a trial writes documents that no search finds

    @contextmanager
    def scratch(
        self,
        *,
        document: str,
        alias: str,
        body: Mapping[str, Any],
        live: Target | None = None,
        has_routing: bool = True,
    ) -> Iterator[tuple[Target, list[Shortcoming]]]:
        """Create an empty hidden index from index.json, and delete it afterwards; yield it with its shortcomings.

        With ``live``, it is a copy of that index, changed in place: only Elasticsearch can tell whether that works.
        """
        with self._deleted_afterwards(document, alias, self.body(live) if live else body) as target:
            if live and (refusal := self.try_change(target, body)):
                raise _refused(document, refusal.replace(target.index_name, live.index_name))
            shown = live.index_name if live else f"a new index for {document}"
            index, shortcomings = self._inspect(target, shown, has_routing=has_routing)
            # Hidden only now: templates for every index do not apply to hidden ones.
            self._put_without_copies(target, {**_NO_COPIES, "index.hidden": True}, index["settings"])
            yield target, shortcomings

    def obstacle(self, *, document: str, alias: str, body: Mapping[str, Any], live: Target) -> str | None:
        """Return why an index cannot be changed in place to match index.json; None if it can."""
        with self._deleted_afterwards(document, alias, self.body(live)) as target:
            refusal = self.try_change(target, body)
        return refusal and refusal.replace(target.index_name, live.index_name)

    @contextmanager
    def _deleted_afterwards(self, document: str, alias: str, body: Mapping[str, Any]) -> Iterator[Target]:
        target = Target.of_index(f"{alias}{_SCRATCH}{time.time():.0f}-{uuid4().hex[:8]}")
        try:
            self._create(document, target, body)
            yield target
        except BaseException:
            # What fails here must not replace the error, or an interrupt. A later plan deletes the index.
            with suppress(elasticsearch.ApiError, elasticsearch.TransportError):
                _delete_scratch(self._client.options(request_timeout=_CLEANUP_TIMEOUT_SECONDS), target.index_name)
            raise
        _delete_scratch(self._client, target.index_name)

    def delete_leftovers(self, aliases: Collection[str]) -> None:
        """Delete the scratch indices that killed trials have left of these aliases."""
        # One pattern: a request with one for each of many aliases would be refused for its length.
        for name in index_metadata(self._client, f"*{_SCRATCH}*", "state", expand_wildcards="all"):
            alias, _, suffix = name.rpartition(_SCRATCH)
            began = re.fullmatch(r"(\d+)-\w+", suffix)
            if alias in aliases and began and time.time() - int(began[1]) > _TRIAL_SECONDS_MAX:
                _delete_scratch(self._client, name)


def _delete_scratch(client: Elasticsearch, name: str) -> None:
    if client.options(ignore_status=(_NOT_FOUND, _FORBIDDEN)).indices.delete(index=name).meta.status == _FORBIDDEN:
        # It has a block. These two forbid it; OpenSearch lets a blocked index lose one at a time, and nothing else.
        for block in ("index.blocks.metadata", "index.blocks.read_only"):
            client.indices.put_settings(index=name, settings={block: None})
        client.indices.delete(index=name)


def is_write_alias(name: str) -> bool:
    """Whether an alias is a write alias, of any index and epoch: after a rename by hand, an index has another one's."""
    return re.search(rf"{WRITE_SUFFIX}-\d+$", name) is not None


def _epoch(write_alias: str) -> int:
    return int(write_alias.rpartition("-")[2])


def create_own(client: Elasticsearch, name: str, properties: Mapping[str, Any]) -> None:
    """Create an index for syncer's own data, unless it exists, with nothing that is left to templates."""
    if client.indices.exists(index=name):
        return
    mappings = {"dynamic": False, "_source": {"enabled": True}, "properties": properties}
    try:
        client.indices.create(index=name, settings={**_OWN_SETTINGS, **product(client).own_settings}, mappings=mappings)
    except elasticsearch.BadRequestError as error:
        if error.error != "resource_already_exists_exception":
            hint = "syncer keeps data of its own there. See the cluster's index templates and limits."
            raise IndexingError(f"{answerer(error)} refuses to create {name}: {reason(error)}", hint=hint) from error


def removal(index_name: str, alias: str) -> dict[str, Any]:
    """Return the action that removes an alias from an index."""
    return {"remove": {"index": index_name, "alias": alias}}


def _refused(document: str, why: str) -> IndexingError:
    hint = "Change what it names in index.json: its settings and mappings are passed on unchanged."
    return IndexingError(f"The index.json of {document} is refused: {why}", hint=hint)


def _as_returned(value: Any) -> Any:
    """Return a setting as Elasticsearch returns it: as a string, or a list of strings."""
    if isinstance(value, list):
        return [_as_returned(element) for element in value]
    if value is None:
        return None
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
