"""Shortcomings: why an index does not keep or show every document as it was written.

Templates, versions, operators and restores decide with index.json what an index becomes. So it is judged by one answer,
of ``GET /INDEX`` with default values: by plan, when it is created, before its documents are blamed, before a suspended
definition resumes, and by the doctor. index.json is judged in the same way, as far as it goes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from elasticsearch import ApiError

from syncer.base.model import Target

GC_DELETES_SECONDS = 3600
"""How long our indices remember the version of a deleted document; Elasticsearch's default is 60."""
_DISK_BLOCK = "index.blocks.read_only_allow_delete"
BLOCKS = (*(f"index.blocks.{kind}" for kind in ("write", "read_only", "read", "metadata", "search_only")), _DISK_BLOCK)
_EXCLUDES_VECTORS = "index.mapping.exclude_source_vectors"
_UNITS = {"nanos": 1e-9, "micros": 1e-6, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_VECTORS = frozenset({"dense_vector", "sparse_vector", "rank_vectors"})
"""The types of fields that Elasticsearch 9.2 and later leaves out of ``_source``."""


class Effect(Enum):
    """What a shortcoming does."""

    REFUSES = "the index may refuse or change what is written"
    IGNORED = "has no effect on what is written"
    ALTERS = "what is read back is not what was written, or cannot be compared"
    HIDES = "searches through the alias miss documents"
    ENDANGERS = "what was acknowledged may be lost or reverted, or is not shown"


class Shortcoming(NamedTuple):
    """Something about an index that breaks a guarantee; the remedy is a request, or advice.

    If a setting is at fault, ``value`` is the one that it needs; None stands for the default.
    """

    effect: Effect
    problem: str
    remedy: str
    setting: str = ""
    value: Any = None
    is_request: bool = True

    @property
    def advice(self) -> str:
        """What to do before the index is created: index.json prevails over templates."""
        return in_index_json(self.setting, self.value) if self.setting else self.remedy

    @property
    def hint(self) -> str:
        """The remedy as a sentence."""
        return f"To fix it, send: {self.remedy}" if self.is_request else self.remedy


_PIPELINE = ": {}, so what a pipeline does belongs in select.sql"
_RULES: dict[str, tuple[Effect, Any, str]] = {
    **dict.fromkeys(BLOCKS, (Effect.REFUSES, False, "")),
    _DISK_BLOCK: (Effect.REFUSES, False, ": it is set while a disk is full. Make room: then it is lifted by itself"),
    "index.mode": (Effect.REFUSES, None, ": such an index makes every _id itself"),
    "index.final_pipeline": (Effect.REFUSES, "_none", _PIPELINE.format("a document must equal its SELECT")),
    "index.default_pipeline": (Effect.IGNORED, "_none", _PIPELINE.format("the writes of syncer bypass it")),
    "index.routing_partition_size": (Effect.ALTERS, 1, ": a document's shard must follow from its _routing alone"),
    "index.mapping.source.mode": (Effect.ALTERS, "stored", ": documents are not kept as they were written"),
    _EXCLUDES_VECTORS: (Effect.ALTERS, False, ": documents are returned without their vectors"),
    "index.disable_sequence_numbers": (Effect.ALTERS, False, ": loads and `syncer verify` cannot list the index"),
    "index.derived_source.enabled": (Effect.ALTERS, False, ": documents are not kept as they were written"),
    "index.append_only.enabled": (Effect.REFUSES, False, ": documents cannot be changed or deleted"),
    "index.gc_deletes": (Effect.ALTERS, f"{GC_DELETES_SECONDS}s", ": a late write could bring a deleted document back"),
    "index.translog.durability": (Effect.ENDANGERS, "request", ": acknowledged writes may be lost"),
    "index.refresh_interval": (Effect.ENDANGERS, None, ": searches show an old state"),
    "index.replication.type": (Effect.ENDANGERS, "DOCUMENT", ": replicas show writes late, also after a refresh"),
    "index.lifecycle.name": (Effect.ENDANGERS, None, ": a lifecycle policy may delete the index or make it read-only"),
}
"""By setting: what another value does, the right value, and why."""
_ARE_WRONG: dict[str, Callable[[str], bool]] = {
    "index.mode": "time_series".__eq__,
    "index.gc_deletes": lambda value: seconds(value) < GC_DELETES_SECONDS,
    "index.refresh_interval": lambda value: value.startswith("-1"),
    "index.lifecycle.name": bool,
}
"""Settings of which some other values are right, too."""
_OF_NEW_INDICES = frozenset({"index.append_only.enabled", "index.mode", "index.replication.type"})
"""Settings that only a new index can have, besides those that alter documents."""


def seconds(duration: str) -> float:
    """Return a duration that Elasticsearch writes, as in ``"1.5h"``; 0 if it has no unit."""
    match = re.fullmatch(r"(-?[0-9.]+)([a-z]+)", duration)
    return float(match[1]) * _UNITS.get(match[2], 0) if match else 0


def find(
    target: Target, answer: Mapping[str, Any], *, searched_as: str = "", has_routing: bool = True
) -> Iterator[Shortcoming]:
    """Yield the shortcomings of an index, given the response to ``GET /INDEX,ALIAS`` with flat settings."""
    name, alias = target.index_name, target.write_alias
    index = answer.get(name)
    if index is None:
        apply = "If it was deleted, make it again with every document: syncer apply"
        renamed = ", ".join(sorted(answer))
        problem = f"The index {name} is gone" + (f", and {renamed} has its name or its write alias" if renamed else "")
        yield Shortcoming(Effect.REFUSES, problem, apply, is_request=False)
        return
    strangers = sorted(answer.keys() - {name})
    if strangers or not index["aliases"].get(alias, {"is_write_index": False}).get("is_write_index", True):
        problem = f"{name} is not the index that {alias} writes to"
        if strangers:
            addition = " as well" if alias in index["aliases"] else f", and not to {name}"
            problem = f"The write alias {alias} leads to {', '.join(strangers)}{addition}"
        removals = [{"remove": {"index": stranger, "alias": alias}} for stranger in strangers]
        added = {"index": name, "alias": alias, "is_hidden": True, "is_write_index": True}
        remedy = request("POST", "/_aliases", {"actions": [*removals, {"add": added}]})
        yield Shortcoming(Effect.REFUSES, problem, remedy)
    if index["settings"].get("index.verified_before_close") == "true":
        yield Shortcoming(Effect.REFUSES, f"The index {name} is closed", request("POST", f"/{name}/_open"))
    yield from of_index(name, index)
    if index["mappings"].get("_routing", {}).get("required") and not has_routing:
        remedy = "Add a column _routing to select.sql, or remove _routing from the mapping in index.json or a template."
        problem = f"The mapping of {name} requires a _routing, which the SELECT lacks"
        yield Shortcoming(Effect.REFUSES, problem, remedy, is_request=False)
    searched = index["aliases"].get(searched_as, {})
    if limits := [limit for limit in ("filter", "search_routing") if limit in searched]:
        remedy = request("POST", "/_aliases", {"actions": [{"add": {"index": name, "alias": searched_as}}]})
        limit = limits[0].removeprefix("search_")
        yield Shortcoming(Effect.HIDES, f"The alias {searched_as} has a {limit}, so searches miss documents", remedy)


def metadata_block(name: str, error: ApiError) -> Shortcoming | None:
    """Return the block of an index that forbids to ask about it; None if it is refused for another reason."""
    if "/index metadata (" not in str(error.body):
        return None
    return next(of_index(name, {"settings": {"index.blocks.metadata": "true"}, "mappings": {}}))


def of_index(name: str, index: Mapping[str, Any]) -> Iterator[Shortcoming]:
    """Yield the shortcomings of settings and mappings alone: of an index, or of what index.json says."""
    settings, mappings = {**index.get("defaults", {}), **index["settings"]}, index["mappings"]
    source = mappings.get("_source", {})
    # Elasticsearch 8 has the mode in the mapping, which then decides; later ones in the settings alone.
    settings |= {"index.mapping.source.mode": source["mode"]} if "mode" in source else {}
    if source.get("enabled") in (False, "false") or source.get("excludes") or source.get("includes"):
        remedy = 'Remove it from index.json, or from the template that adds it. Over a template\'s {"enabled": false},'
        remedy += ' {"_source": {"enabled": true}} in the mappings of index.json prevails. An index that has it needs: '
        remedy += "syncer index rebuild"
        problem = f"_source of {name} leaves out what is written ({', '.join(sorted(source))}), so documents cannot be"
        yield Shortcoming(Effect.ALTERS, f"{problem} compared or kept", remedy, is_request=False)
    if settings.get("index.remote_store.enabled") == "true":  # then it is SEGMENT, and can be nothing else
        settings.pop("index.replication.type", None)
    if _VECTORS.isdisjoint(_types(mappings)):
        settings.pop(_EXCLUDES_VECTORS, None)
    for setting, (effect, right, why) in _RULES.items():
        value = str(settings.get(setting, "")).lower()
        is_wrong = _ARE_WRONG.get(setting, str(right).lower().__ne__)
        if settings.get(setting) is not None and is_wrong(value):
            # Only a new index can have another one.
            is_fixed = setting in _OF_NEW_INDICES or (effect is Effect.ALTERS and setting != "index.gc_deletes")
            advice = f"{in_index_json(setting, right)} Then run: syncer apply"
            remedy = advice if is_fixed else request("PUT", f"/{name}/_settings", {setting: right})
            problem = f"{setting} of {name} is {value}{why}"
            yield Shortcoming(effect, problem, remedy, setting, right, is_request=not is_fixed)


def in_index_json(setting: str, value: Any) -> str:
    """Return the advice to give a setting a value in index.json, which prevails over templates; None is its default."""
    if value is None:
        return f"Remove {setting} from index.json, or from the template that adds it."
    return f"Add to the settings in index.json: {json.dumps(setting)}: {json.dumps(value)}."


def _types(mapping: Mapping[str, Any]) -> Iterator[str]:
    """Yield the types of all fields of a mapping."""
    fields = list(mapping.get("properties", {}).values())
    while fields:
        field = fields.pop()
        yield field.get("type", "object")
        fields += [*field.get("properties", {}).values(), *field.get("fields", {}).values()]


def request(method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
    """Return a request as Kibana's console takes it: method and path, and its body in the next line."""
    return f"{method} {path}" + ("" if body is None else f"\n{json.dumps(body)}")
