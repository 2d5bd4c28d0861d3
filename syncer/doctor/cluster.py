"""Elasticsearch as a whole: its health, its room, its limits, and what the user of the daemon may do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import elasticsearch

from syncer.doctor.finding import check
from syncer.doctor.patient import Patient, UnseenError
from syncer.doctor.symptom import Group, Symptom, advice, consider, shell, wrong
from syncer.wording import amount

_SYNCER_STATE = "syncer-state"
_OF_THE_DAEMON = ("read", "write", "view_index_metadata", "maintenance")
_OF_APPLY = ("create_index", "manage")
_CLUSTER = ("monitor",)
_CLUSTER_OF_APPLY = ("manage_index_templates",)


@check(
    "elasticsearch.reach",
    "Elasticsearch answers, and is 8 or newer",
    promises=(1,),
    why="Documents go there.",
)
def _reach(patient: Patient) -> Iterator[Symptom]:
    failure = patient.failure(Group.ELASTICSEARCH)
    if failure is not None:
        yield wrong(failure.message, advice(failure.hint))


@check(
    "elasticsearch.health",
    "Every shard of our indices is there, with its replicas",
    promises=(1, 3),
    why="A shard that is away takes no document; one without a replica goes with its node, and is filled again "
    "for long.",
)
def _health(patient: Patient) -> Iterator[Symptom]:
    names = [*patient.held, _SYNCER_STATE]
    answer = patient.elasticsearch.cluster.health(
        index=[f"{name}*" for name in names], level="indices", expand_wildcards="all"
    ).body
    why = patient.request(
        "GET", "/_cluster/allocation/explain?pretty", note="It says why a shard is not where it should be."
    )
    for name, found in sorted(answer.get("indices", {}).items()):
        if name not in names or found["status"] == "green":
            continue
        if found["status"] == "red":
            yield wrong(f"{name} is red: {amount(found['unassigned_shards'], 'shard')} of it is nowhere", why)
        elif answer["number_of_data_nodes"] <= found["number_of_replicas"]:
            yield consider(
                f"{name} wants {amount(found['number_of_replicas'], 'replica')}, and there is no node for it",
                patient.request(
                    "PUT",
                    f"/{name}/_settings",
                    json.dumps({"index.number_of_replicas": answer["number_of_data_nodes"] - 1}),
                    note="Or add a node.",
                ),
            )
        else:
            yield consider(f"{name} is yellow: {amount(found['unassigned_shards'], 'replica')} of it is nowhere", why)


@check(
    "elasticsearch.cluster_blocks",
    "The cluster takes writes",
    promises=(1,),
    why="With cluster.blocks.read_only nothing is written.",
)
def _cluster_blocks(patient: Patient) -> Iterator[Symptom]:
    found = patient.elasticsearch.cluster.get_settings(flat_settings=True).body
    for kind in ("persistent", "transient"):
        for name in ("cluster.blocks.read_only", "cluster.blocks.read_only_allow_delete"):
            if found[kind].get(name) == "true":
                yield wrong(
                    f"{name} is set", patient.request("PUT", "/_cluster/settings", json.dumps({kind: {name: None}}))
                )


@check(
    "elasticsearch.disk",
    "The nodes have room on their disks",
    promises=(1,),
    why="A node whose disk is full blocks its indices: nothing is written until there is room.",
)
def _disk(patient: Patient) -> Iterator[Symptom]:
    nodes = patient.elasticsearch.nodes.stats(metric="fs").body["nodes"]
    for node in nodes.values():
        total = node.get("fs", {}).get("total", {})
        free, of = total.get("available_in_bytes"), total.get("total_in_bytes")
        if of and free is not None and free < of * patient.limits.disk_free_share:
            yield consider(
                f"Node {node['name']} has {free / 1024**3:,.1f} GB of {of / 1024**3:,.0f} GB free",
                advice("Give it a larger disk, or delete what nobody needs: see elasticsearch.left_over."),
            )


@check(
    "elasticsearch.shards",
    "There is room for more shards",
    promises=(4,),
    why="A cluster that has as many shards as it may have makes no index, and so neither a new document nor a rebuild.",
)
def _shards(patient: Patient) -> Iterator[Symptom]:
    name = "cluster.max_shards_per_node"
    health = patient.elasticsearch.cluster.health().body
    found = patient.elasticsearch.cluster.get_settings(include_defaults=True, flat_settings=True).body
    said = next(found[kind][name] for kind in ("transient", "persistent", "defaults") if name in found.get(kind, {}))
    limit = int(said) * health["number_of_data_nodes"]
    there = health["active_shards"] + health["unassigned_shards"]
    if there >= limit * patient.limits.shards_share:
        yield consider(
            f"The cluster has {there:,} shards of {limit:,}",
            patient.request(
                "PUT",
                "/_cluster/settings",
                json.dumps({"persistent": {name: 2 * int(said)}}),
                note="Or have fewer indices.",
            ),
        )


@check(
    "elasticsearch.request_size",
    "Elasticsearch takes requests as large as syncer makes them",
    promises=(),
    why="What is too large is sent again in halves; a document that is too large by itself is parked.",
)
def _request_size(patient: Patient) -> Iterator[Symptom]:
    nodes = patient.elasticsearch.nodes.info(metric="http").body["nodes"].values()
    least = min((one["http"]["max_content_length_in_bytes"] for one in nodes if "http" in one), default=None)
    wanted = patient.settings.worker.bulk_bytes_max
    if least is not None and least < wanted:
        yield consider(
            f"http.max_content_length is {least:,} bytes, and worker.bulk_bytes_max {wanted:,}",
            shell(f"export SYNCER_WORKER_BULK_BYTES_MAX={least // 2}"),
        )


@check(
    "elasticsearch.wildcards",
    "Nobody deletes all indices with a wildcard",
    promises=(3,),
    why="DELETE /* by mistake takes every document, and the record of the epoch.",
)
def _wildcards(patient: Patient) -> Iterator[Symptom]:
    name = "action.destructive_requires_name"
    found = patient.elasticsearch.cluster.get_settings(include_defaults=True, flat_settings=True).body
    for kind in ("transient", "persistent", "defaults"):
        said = found.get(kind, {}).get(name)
        if said is not None:
            if said == "false":
                yield consider(
                    f"{name} is false",
                    patient.request(
                        "PUT", "/_cluster/settings", json.dumps({"persistent": {name: True}, "transient": {name: None}})
                    ),
                )
            return


@check(
    "elasticsearch.privileges",
    "The user of the daemon may do what daemon and apply do",
    promises=(1,),
    why="What the daemon may not, ends it.",
)
def _privileges(patient: Patient) -> Iterator[Symptom]:
    names = [f"{alias}*" for alias in sorted({one.index for one in patient.documents})] + [_SYNCER_STATE]
    wanted = [{"names": names, "privileges": [*_OF_THE_DAEMON, *_OF_APPLY]}]
    try:
        answer = patient.elasticsearch.security.has_privileges(
            cluster=[*_CLUSTER, *_CLUSTER_OF_APPLY], index=wanted
        ).body
    except elasticsearch.BadRequestError as error:
        raise UnseenError("Elasticsearch runs without security: everybody may do everything") from error
    role = advice(
        "Give its role the cluster privileges monitor and manage_index_templates, and "
        f"{', '.join((*_OF_THE_DAEMON, *_OF_APPLY))} on {', '.join(names)}."
    )
    lacking = {name: [one for one, has in found.items() if not has] for name, found in answer["index"].items()} | {
        "the cluster": [one for one, has in answer["cluster"].items() if not has]
    }
    for name, privileges in sorted(lacking.items()):
        of_apply = [one for one in privileges if one in (*_OF_APPLY, *_CLUSTER_OF_APPLY)]
        of_the_daemon = [one for one in privileges if one not in of_apply]
        if of_the_daemon:
            yield wrong(f"{answer['username']} lacks {' and '.join(of_the_daemon)} on {name}", role)
        if of_apply:
            yield consider(
                f"{answer['username']} lacks {' and '.join(of_apply)} on {name}: apply and rebuild need it", role
            )


@check(
    "elasticsearch.clock",
    "The clock of Elasticsearch is this machine's",
    promises=(),
    why="No order rests on clocks; but who compares its log with the daemon's is led astray.",
)
def _clock(patient: Patient) -> Iterator[Symptom]:
    before = time.time()
    nodes = patient.elasticsearch.nodes.stats(metric="os").body["nodes"].values()
    after = time.time()
    for node in nodes:
        there = node["os"]["timestamp"] / 1000
        # What it says may be a second old.
        off = max(before - there - 1, there - after, 0)
        if off > patient.limits.clock_seconds:
            yield consider(
                f"The clock of node {node['name']} and that of this machine are {off:,.1f} s apart",
                advice("Let both follow the same time server (chrony, systemd-timesyncd)."),
            )


CHECKS = (
    _reach,
    _health,
    _cluster_blocks,
    _disk,
    _shards,
    _request_size,
    _wildcards,
    _privileges,
    _clock,
)
