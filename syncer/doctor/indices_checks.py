"""Our indices in Elasticsearch: there, open, as they were applied, and remembering deletes for long enough."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from syncer.doctor.finding import check
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Mend, Symptom, consider, shell, wrong
from syncer.indices import GC_DELETES_SECONDS
from syncer.model import Role
from syncer.store import Document

_UNITS = {"nanos": 1e-9, "micros": 1e-6, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_GC_DEFAULT = "60s"
_BLOCKS = ("read_only", "read_only_allow_delete", "write", "read", "metadata")
_PIPELINES = ("index.default_pipeline", "index.final_pipeline")


@check(
    "elasticsearch.indices",
    "Every index in force is there, and open",
    promises=(1, 3),
    why="A document whose index is gone halts, and searches find nothing.",
)
def _indices(patient: Patient) -> Iterator[Symptom]:
    held = patient.held
    states: dict[str, dict[str, str]] = {}
    if held:
        answer = patient.elasticsearch.cluster.state(
            metric="metadata",
            index=",".join(held),
            filter_path="metadata.indices.*.state",
            expand_wildcards="all",
        )
        states = answer.body["metadata"]["indices"]
    for one in patient.documents:
        if one.index_name not in held:
            yield wrong(f"{one.index_name}, which {one.name} is written to, is gone", _made_again(one))
        elif states.get(one.index_name, {}).get("state") == "close":
            mend = patient.request(
                "POST", f"/{one.index_name}/_open", note="Has the document halted meanwhile? Then run: syncer apply"
            )
            yield wrong(f"{one.index_name} is closed", mend)


def _made_again(document: Document) -> Mend:
    match document.role:
        case Role.SERVING:
            return shell("syncer apply")
        case Role.BUILDING:
            return shell(f"syncer backfill {document.name} --abandon", "Then build it again, with --rebuild.")
        case Role.STANDBY:
            return shell(f"syncer backfill {document.name} --drop-old")


@check(
    "elasticsearch.aliases",
    "Writes and searches find the index that Postgres says",
    promises=(3, 4),
    why="Writes name an alias of the index and searches another one; an alias that leads elsewhere shows other "
    "documents.",
)
def _aliases(patient: Patient) -> Iterator[Symptom]:
    for one, held in patient.each_index():
        add: list[dict[str, Any]] = []
        if one.target.write_alias not in held["aliases"]:
            add.append({"add": {"index": one.index_name, "alias": one.target.write_alias, "is_hidden": True}})
        searched = set(_holders(patient, one.index))
        if one.role is Role.SERVING and searched != {one.index_name}:
            others = sorted(searched - {one.index_name})
            add += [{"remove": {"index": name, "alias": one.index}} for name in others]
            add.append({"add": {"index": one.index_name, "alias": one.index}})
        if add:
            names = " and ".join(dict.fromkeys(next(iter(action.values()))["alias"] for action in add))
            yield wrong(
                f"{names} does not lead to {one.index_name} alone",
                patient.request("POST", "/_aliases", _json(actions=add)),
            )


def _holders(patient: Patient, alias: str) -> list[str]:
    found = patient.elasticsearch.options(ignore_status=404).indices.get_alias(name=alias)
    return list(found.body) if found.meta.status != 404 else []  # noqa: PLR2004 - not found


@check(
    "elasticsearch.gc_deletes",
    f"Every index remembers the version of a deleted document for {GC_DELETES_SECONDS} s",
    promises=(2,),
    why="Once a delete is forgotten, a writer that was held up in between brings the document back for good.",
)
def _gc_deletes(patient: Patient) -> Iterator[Symptom]:
    for one, held in patient.each_index():
        found = held["settings"].get("index.gc_deletes", _GC_DEFAULT)
        if seconds(found) < GC_DELETES_SECONDS:
            yield wrong(
                f"{one.index_name} forgets deletes after {found}",
                _put(patient, one, {"index.gc_deletes": f"{GC_DELETES_SECONDS}s"}),
            )


def seconds(said: str) -> float:
    """A time as Elasticsearch says it; one without a unit is none that it takes, and counts as nothing."""
    found = re.fullmatch(r"(-?\d+)([a-z]+)", str(said))
    return int(found[1]) * _UNITS.get(found[2], 0) if found else 0


@check(
    "elasticsearch.durability",
    "Every index that serves has written to disk what it has acknowledged",
    promises=(1,),
    why="With an asynchronous translog a crash of Elasticsearch takes back the last seconds, and nobody writes "
    "them again.",
)
def _durability(patient: Patient) -> Iterator[Symptom]:
    name = "index.translog.durability"
    for one, held in patient.each_index():
        if one.role is not Role.BUILDING and held["settings"].get(name, "request").lower() == "async":
            yield wrong(f"{name} of {one.index_name} is async", _put(patient, one, {name: "request"}))


@check(
    "elasticsearch.refresh",
    "Every index that serves shows its documents to searches",
    promises=(3,),
    why="With a refresh_interval of -1 searches go on finding what was there before.",
)
def _refresh(patient: Patient) -> Iterator[Symptom]:
    name = "index.refresh_interval"
    for one, held in patient.each_index():
        if one.role is Role.SERVING and str(held["settings"].get(name, "1s")).startswith("-1"):
            yield wrong(f"{name} of {one.index_name} is -1", _put(patient, one, {name: None}))


@check(
    "elasticsearch.pipelines",
    "No ingest pipeline changes documents on their way",
    promises=(3,),
    why="A document is to equal its SELECT; what a pipeline makes of it does not, and verify calls it drift.",
)
def _pipelines(patient: Patient) -> Iterator[Symptom]:
    for one, held in patient.each_index():
        found = {name: held["settings"][name] for name in _PIPELINES if held["settings"].get(name, "_none") != "_none"}
        for name, pipeline in found.items():
            yield wrong(
                f"{name} of {one.index_name} is {pipeline}",
                patient.request(
                    "PUT",
                    f"/{one.index_name}/_settings",
                    json.dumps({name: None}),
                    note=f"Then write again what it has changed: syncer backfill {one.name}",
                ),
            )


@check(
    "elasticsearch.blocks",
    "No index is blocked",
    promises=(1,),
    why="Nothing is written to a blocked index; Elasticsearch blocks it by itself when its disk is full.",
)
def _blocks(patient: Patient) -> Iterator[Symptom]:
    for one, held in patient.each_index():
        found = [name for name in (f"index.blocks.{kind}" for kind in _BLOCKS) if held["settings"].get(name) == "true"]
        if found:
            yield wrong(
                f"{one.index_name} has {' and '.join(found)}",
                patient.request(
                    "PUT",
                    f"/{one.index_name}/_settings",
                    json.dumps(dict.fromkeys(found)),
                    note="Is its disk full? See elasticsearch.disk first.",
                ),
            )


@check(
    "elasticsearch.lifecycle",
    "No lifecycle policy rolls an index over, or deletes it",
    promises=(3, 4),
    why="The alias would lead to an index that nobody fills.",
)
def _lifecycle(patient: Patient) -> Iterator[Symptom]:
    for one, held in patient.each_index():
        yield from judge_lifecycle(patient, one, held["settings"])


def judge_lifecycle(patient: Patient, document: Document, settings: Mapping[str, Any]) -> Iterator[Symptom]:
    """What is wrong with the lifecycle of an index."""
    policy = settings.get("index.lifecycle.name")
    if policy:
        yield wrong(
            f"The policy {policy} governs {document.index_name}",
            patient.request("POST", f"/{document.index_name}/_ilm/remove"),
        )


@check(
    "elasticsearch.routing",
    "A routing leads to one shard",
    promises=(2, 3),
    why="With a routing_partition_size of more than 1 nobody knows which shards may hold a copy of a document.",
)
def _routing(patient: Patient) -> Iterator[Symptom]:
    name = "index.routing_partition_size"
    for one, held in patient.each_index():
        size = held["settings"].get(name, "1")
        if size != "1":
            yield wrong(
                f"{name} of {one.index_name} is {size}",
                shell(f"syncer apply\nsyncer backfill {one.name} --rebuild", "Take it out of index.json first."),
            )


@check(
    "elasticsearch.mapping",
    "Every field has the mapping that was applied",
    promises=(3,),
    why="Another mapping finds other documents, or refuses them.",
)
def _mapping(patient: Patient) -> Iterator[Symptom]:
    for one, held in patient.each_index():
        wanted = one.index_body.get("mappings", {})
        differ = list(differences(wanted, held["mappings"]))
        if differ:
            yield wrong(
                f"{one.index_name} has another mapping than was applied, of {', '.join(differ[:5])}",
                shell(
                    f"syncer backfill {one.name} --rebuild", "It makes a new index, with the mapping that was applied."
                ),
            )


def differences(wanted: Mapping[str, Any], there: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The fields that a mapping lacks, or that are of another type or analyzer there."""
    for part in ("properties", "fields"):
        found = there.get(part, {})
        for name, one in wanted.get(part, {}).items():
            here = f"{path}{name}"
            other = _step(found, name)
            if other is None or any(_said(one, key) != _said(other, key) for key in ("type", "analyzer", "enabled")):
                yield here
            else:
                yield from differences(one, other, f"{here}.")


def _step(properties: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """A field of that name; a dot in it is a step into an object."""
    if name in properties:
        found: Mapping[str, Any] = properties[name]
        return found
    head, dot, rest = name.partition(".")
    return _step(properties[head].get("properties", {}), rest) if dot and head in properties else None


def _said(mapping: Mapping[str, Any], key: str) -> str | None:
    value = mapping.get(key)
    if key == "type":
        return str(value) if value is not None else "object"
    if key == "analyzer" and value == "default":
        return None
    return None if value is None or (key == "enabled" and str(value).lower() == "true") else str(value).lower()


@check(
    "elasticsearch.fields",
    "There is room for more fields",
    promises=(3,),
    why="Once an index has as many fields as it may have, a document with a new one is parked.",
)
def _fields(patient: Patient) -> Iterator[Symptom]:
    name = "index.mapping.total_fields.limit"
    for one, held in patient.each_index():
        limit, there = int(held["settings"].get(name, 1000)), count_fields(held["mappings"])
        if there >= limit * patient.limits.fields_share:
            yield consider(
                f"{one.index_name} has {there} fields of {limit}",
                _put(patient, one, {name: max(2 * limit, 2 * there)}),
            )


def count_fields(mapping: Mapping[str, Any]) -> int:
    """How many fields Elasticsearch counts: each one, each object, and each multi-field."""
    parts = [one for part in ("properties", "fields") for one in mapping.get(part, {}).values()]
    return sum(1 + count_fields(one) for one in parts)


def _put(patient: Patient, document: Document, settings: Mapping[str, Any]) -> Mend:
    return patient.request("PUT", f"/{document.index_name}/_settings", json.dumps(settings))


def _json(**body: Any) -> str:
    return json.dumps(body)


CHECKS = (
    _indices,
    _aliases,
    _gc_deletes,
    _durability,
    _refresh,
    _pipelines,
    _blocks,
    _lifecycle,
    _routing,
    _mapping,
    _fields,
)
