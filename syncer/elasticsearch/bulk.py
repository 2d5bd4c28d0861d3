"""Bulk writes of documents. `syncer.elasticsearch.reader` reads them back.

Guarantees:

- A write is a whole document or a delete, with an external version, so that a document never goes back.
- A version conflict counts as success: a version at least as new is there or in flight. In two cases it may not be, and
  the outcome reveals them: the database was set back in time, or another client has raised a version.
- A write names an alias and requires it, so that a late one never re-creates a dropped index. The name ends with the
  epoch, so that a late one of an earlier epoch is refused. A success counts only in the index itself, wherever the
  alias leads.
- What a request deletes is logged before it is sent: see `syncer.elasticsearch.record`.
- No pipeline changes a document: a default one is bypassed, and nothing counts that has met a final one.
- Alone before blame: what is refused together with others is sent again in halves, until it is written or was refused
  alone. Pipelines and inference endpoints refuse a request, or a part of it, for one of its documents.
- A document with a ``_routing`` is written to its own shard, and deleted from every other one with the same version,
  since Elasticsearch keeps versions per shard and id: no copy stays on a former shard. The deletes are left out if none
  of the changes that it is written for has moved it: the write for the one that has sends them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NamedTuple, cast

import elasticsearch
from elasticsearch import Elasticsearch

from syncer.base.error_policy import (
    CLUSTER_BLOCK,
    ITEM_FAILED,
    NO_ROOM,
    OF_DOCUMENT,
    Action,
    decide,
    decide_item,
    is_by_another,
    reason,
)
from syncer.base.errors import UnavailableError
from syncer.base.model import ID_BYTES_MAX, WRITE_SUFFIX, Composition, Target, is_id, is_raised, is_utf8
from syncer.elasticsearch.client import product
from syncer.elasticsearch.indices import WRITES, is_write_alias, removal
from syncer.elasticsearch.reader import Holdings, Shards, index_metadata
from syncer.elasticsearch.record import Record

BULK_BYTES_MAX = 8 * 1024 * 1024
"""The maximum size of a bulk request."""
_CREATED = 201
_DONE = (200, _CREATED)
_BAD_REQUEST, _NOT_FOUND, _CONFLICT, _TOO_LARGE = 400, 404, 409, 413
TOO_LARGE, INVALID_ID = "too_large", "invalid_id"
"""The kinds of rejections that are about the document, whatever the index is."""
_PRESSURE = re.compile(r"coordinating_operation_bytes=(\d+), max_coordinating\w*_bytes=(\d+)")
_WAIT_FOR_SHARD = "20s"
"""Less than its default, which is as long as our own timeout."""
_FOUND_VERSION = re.compile(r"current version \[(\d+)\]")
_BULK_TASKS = "/_tasks?actions=indices:data/write/bulk&detailed=true"
_BULK_TASKS += "&filter_path=node_failures.type,nodes.*.tasks.*.description"
_FIELDS = "ingest_took,items.*._index,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by"


class Rejection(NamedTuple):
    """One document that Elasticsearch did not write, with the item's HTTP status, error type and reason."""

    composition: Composition
    status: int
    kind: str
    reason: str


@dataclass(slots=True)
class BulkOutcome:
    """The outcome of one bulk write."""

    done: dict[str, str] = field(default_factory=dict)
    """By id: "indexed", "deleted" (or absent), or "skipped", since a shard had a version at least as new."""
    created: list[Composition] = field(default_factory=list)  # new on at least one shard, as far as it remembers
    unsure: list[Composition] = field(default_factory=list)
    """Not written, because its own version was there, or one that syncer does not assign."""
    rejections: list[Rejection] = field(default_factory=list)  # by shard: alone, for now, or since it takes none
    has_taken: bool = False  # whether a document, not a delete, was written, or would have been but for its version
    untried: list[Composition] = field(default_factory=list)  # not sent alone, since none was taken: for another time
    has_met_pipeline: bool = False  # whether a pipeline may have changed documents: what became of them is unknown


class Index:
    """Writes documents. Safe to share between threads, as the client is."""

    def __init__(self, client: Elasticsearch, *, bulk_bytes_max: int = BULK_BYTES_MAX) -> None:
        self._client = client
        self._bytes_max = bulk_bytes_max
        self.holdings = Holdings(client)
        """Reads documents back."""
        self.record = Record(client)

    def fence(self, index_names: Collection[str], epoch: int) -> None:
        """Rename the write aliases of indices to those of an epoch, at once; requests that name others are refused.

        An index that is gone is left out, and one with a block. It takes no writes; once it does, repeat this.

        Raises:
            UnavailableError: Not every node has acknowledged it.
        """
        # Rules: aliases-name-the-epoch, an-index-that-is-gone-does-not-prevent-the-fence.
        patterns = [f"{name}*" for name in index_names]
        metadata = index_metadata(self._client, patterns, "aliases", expand_wildcards="all")
        renamings = []
        for name in set(index_names) & metadata.keys():
            alias = Target.of_index(name, epoch).write_alias
            aliases = metadata[name]["aliases"]
            actions = [removal(name, former) for former in aliases if is_write_alias(former) and former != alias]
            if actions or alias not in aliases:
                renamings.append([*actions, {"add": {"index": name, "alias": alias, **WRITES}}])
        if renamings:
            self._rename(renamings)

    def _rename(self, renamings: Sequence[list[dict[str, Any]]]) -> None:
        """Change aliases of several indices in one request; without those that have a block, if there are any."""
        try:
            answer = self._client.indices.update_aliases(actions=[*chain.from_iterable(renamings)])
        except elasticsearch.ApiError as error:
            if error.error != CLUSTER_BLOCK:
                raise
            for renaming in renamings if len(renamings) > 1 else ():
                self._rename([renaming])
        else:
            if not answer["acknowledged"]:
                problem = "Not every node has acknowledged the write aliases of this epoch"
                raise UnavailableError(problem, hint="The daemon tries again.")

    def is_drained(self, index_name: str, epoch: int) -> bool:
        """Whether no request is at work that named a write alias of an earlier epoch when it arrived.

        A node finds the index of an alias when a request arrives. The write may wait for its thread long after that.
        """
        # Rule: drain-before-listing.
        # client.tasks.list would issue a Python warning: the client calls the API a technical preview.
        answer = self._client.perform_request("GET", _BULK_TASKS, headers={"accept": "application/json"}).body
        if answer.get("node_failures"):
            problem = "Not every node tells which requests it is at work on"
            raise UnavailableError(problem, hint="The daemon tries again.")
        alias = re.compile(rf"\b{re.escape(index_name + WRITE_SUFFIX)}-(\d+)")
        tasks = [task for node in answer.get("nodes", {}).values() for task in node["tasks"].values()]
        return all(int(number) >= epoch for task in tasks for number in alias.findall(task["description"]))

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write documents to one target, in requests of bounded size.

        A document that moves to another shard and is rejected there is deleted from its former shard all the same. If a
        request fails as a whole, earlier ones may have been written: to write all of them again is harmless.
        """
        may_move = any(c.routing is not None and not (c.source and c.is_unmoved) for c in compositions)
        try:
            shards = self.holdings.shards(target) if may_move else None
        except elasticsearch.ApiError as error:
            if decide(error) is Action.RETRY:
                raise
            # The index is gone, for example: each document is refused, as it would be if it were sent.
            told = error.status_code, str(error.message), reason(error)
            return BulkOutcome(rejections=[Rejection(composition, *told) for composition in compositions])
        return self._write(target, compositions, shards)

    def _write(self, target: Target, compositions: Sequence[Composition], shards: Shards | None) -> BulkOutcome:
        """Write documents; those that may move are deleted on other shards."""
        outcome, tasks, size = BulkOutcome(), list[_Task](), 0
        if deleted := [composition.id for composition in compositions if _may_delete(composition, shards)]:
            self.record.log(target.index_name, deleted)
        for composition in compositions:
            if outcome.has_met_pipeline:
                break
            if not _has_valid_id(composition, outcome):
                continue
            if outcome.untried and not outcome.has_taken:
                outcome.untried.append(composition)
                continue
            stale: list[str] = []
            # Rule: absence-is-deleted-everywhere.
            if shards and composition.routing is not None and _may_delete(composition, shards):  # on every other shard
                # To delete, each shard is addressed, also its own: a mapping may require a routing.
                shard = shards.shard(composition.place.routing) if composition.source else None
                stale = [address for number, address in enumerate(shards.addresses) if number != shard]
            operations = _operations(composition, stale)
            task = _Task(composition, len(operations), b"".join(operations))
            if tasks and size + len(task.lines) > self._bytes_max:
                self._send(target, tasks, outcome)
                tasks, size = [], 0
            tasks.append(task)
            size += len(task.lines)
        if tasks:
            self._send(target, tasks, outcome)
        return outcome

    def _send(self, target: Target, tasks: Sequence[_Task], outcome: BulkOutcome) -> None:
        """Send a request, and what it refuses in halves; while no document is taken, only the first of them."""
        refused = {} if outcome.has_met_pipeline else self._request(target, tasks, outcome)
        if len(tasks) == 1 or not refused:
            outcome.rejections += chain.from_iterable(refused.values())
            return
        tasks = [task for task in tasks if task.composition.id in refused]
        half, other_half = tasks[::2], tasks[1::2]  # neighbours often have the same fault: what is sent first is spread
        self._send(target, half, outcome)
        if not outcome.has_taken:  # the index may be at fault: log2 n requests tell
            outcome.untried += [task.composition for task in other_half]
        elif other_half:
            self._send(target, other_half, outcome)

    def _request(self, target: Target, tasks: Sequence[_Task], outcome: BulkOutcome) -> dict[str, list[Rejection]]:
        """Send a request; return what is refused for a document of it, or by the index, by id."""
        # Rule: deletes-have-an-update. Elasticsearch ignores require_alias if a request has nothing but deletes.
        update = [] if any(task.composition.source for task in tasks) else [_update_of_nothing(tasks[0].composition)]
        body = b"".join([*update, *(task.lines for task in tasks)])
        try:
            response = self._client.bulk(
                index=target.write_alias,
                operations=cast("Any", body),  # the client sends bytes unchanged
                require_alias=True,  # Rule: writes-require-the-alias.
                pipeline="_none",  # bypasses a default pipeline, and not a final one
                filter_path=_FIELDS,
                timeout=_WAIT_FOR_SHARD,
            )
        except elasticsearch.ApiError as error:
            status, kind, why = error.status_code, str(error.message), reason(error)
            # Elasticsearch 9 refuses a part of a request for the parts before it: twice the size, if it can be halved.
            if _never_fits(error, len(body) if len(tasks) == 1 else 2 * len(body)):
                why = f"a request of {len(body)} bytes with this document alone is larger than is taken: "
                why += "http.max_content_length, or what a proxy before it or indexing_pressure.memory.limit says"
                status, kind = _TOO_LARGE, TOO_LARGE
            elif decide(error) is Action.RETRY:
                raise
            return {task.composition.id: [Rejection(task.composition, status, kind, why)] for task in tasks}
        answer = response.body if isinstance(response.body, dict) else {}
        items = answer.get("items", [])
        has_written = any(item.get("index", {}).get("status") in (*_DONE, _CONFLICT) for item in items)
        if has_written and "ingest_took" in answer:  # only if a pipeline was at work
            outcome.has_met_pipeline = True
            return {}
        operations = len(update) + sum(task.operations for task in tasks)
        if len(items) != operations:  # the outcome of the others is unknown
            problem = f"{product(self._client).name} answered {len(items)} items to a bulk request of {operations}"
            raise UnavailableError(problem, hint="Does a proxy in front of it change its responses?")
        answers = (_answer(item, target) for item in items[len(update) :])
        refused = {}
        for composition, number, _ in tasks:
            if rejections := _settle(composition, list(islice(answers, number)), outcome):
                refused[composition.id] = rejections
        return refused


def _may_delete(composition: Composition, shards: Shards | None) -> bool:
    """Whether a document is deleted, or what another shard may have of it."""
    if composition.source is None:
        return True
    return shards is not None and shards.number > 1 and composition.routing is not None and not composition.is_unmoved


def _never_fits(error: elasticsearch.ApiError, size: int) -> bool:
    """Whether a request of this size was refused for its size and will be until a setting changes."""
    if error.status_code == _TOO_LARGE:
        return True
    if error.status_code != NO_ROOM or is_by_another(error):
        return False
    pressure = _PRESSURE.search(reason(error))
    return pressure is not None and max(int(pressure[1]), size) > int(pressure[2])


class _Task(NamedTuple):
    """A document in a bulk request: how many operations it takes, and their lines."""

    composition: Composition
    operations: int
    lines: bytes


def _operations(composition: Composition, stale: Sequence[str]) -> list[bytes]:
    """Return the lines of each operation: write a document, or delete it, and delete it where these routings lead."""
    id_, version, routing, source = composition.id, composition.version, composition.routing, composition.source
    # Rules: external-versions, deletes-have-versions. So a shard that has seen this version keeps no older copy.
    meta = f'"_id":{_quoted(id_)},"version":{version},"version_type":"external"'
    deletes = [f'{{"delete":{{{meta},"routing":{_quoted(address)}}}}}\n'.encode() for address in stale]
    if source is None:
        return deletes or [f'{{"delete":{{{meta}}}}}\n'.encode()]
    meta = f'{meta},"routing":{_quoted(routing)}' if routing else meta
    return [b"%b%b\n" % (f'{{"index":{{{meta}}}}}\n'.encode(), source), *deletes]


def _update_of_nothing(deleted: Composition) -> bytes:
    """Return an operation without effect: no text of Postgres is this id. It asks the shard of the first delete."""
    return f'{{"update":{{"_id":"\\u0000","routing":{_quoted(deleted.place.routing)}}}}}\n{{"doc":{{}}}}\n'.encode()


def _has_valid_id(composition: Composition, outcome: BulkOutcome) -> bool:
    """Whether Elasticsearch accepts the id. An invalid one would make it refuse the whole request."""
    why = f"an id has 1 to {ID_BYTES_MAX} bytes"
    if not (is_utf8(composition.id) and is_utf8(composition.routing or "")):
        why = "an _id and a _routing are valid UTF-8"
    elif is_id(composition.id):
        return True
    elif composition.source is None:  # no document can have that id
        outcome.done[composition.id] = "deleted"
        return False
    outcome.rejections.append(Rejection(composition, _BAD_REQUEST, INVALID_ID, why))
    return False


def _settle(composition: Composition, items: Sequence[Mapping[str, Any]], outcome: BulkOutcome) -> list[Rejection]:
    """Count a document once, from the answers of all its shards; return refusals that may be due to another one."""
    if any(item["status"] == _CREATED for item in items):
        outcome.created.append(composition)
    # A delete that finds no copy is a 404 without an error; if the index is gone, it has one.
    failed = [i for i in items if i["status"] not in _DONE and ("error" in i or i["status"] != _NOT_FOUND)]
    if rejections := [_rejection(composition, item) for item in failed if item["status"] != _CONFLICT]:
        if any(_may_be_of_another(rejection) for rejection in rejections):
            return rejections
        outcome.rejections += rejections
        return []
    outcome.has_taken |= composition.source is not None
    if not failed:
        outcome.done[composition.id] = "deleted" if composition.source is None else "indexed"
        return []
    matches = [_FOUND_VERSION.search(str(item.get("error", {}).get("reason", ""))) for item in failed]
    versions = [int(match[1]) if match else 0 for match in matches]
    if any(version == composition.version or is_raised(version) for version in versions):
        outcome.unsure.append(composition)
    else:
        outcome.done[composition.id] = "skipped"
    return []


def _answer(item: Mapping[str, Any], target: Target) -> Mapping[str, Any]:
    """Return the answer to one operation: an error, if what was accepted has not reached the index."""
    (answer,) = item.values()
    is_error = "error" in answer and answer["status"] != _CONFLICT
    if is_error or answer["_index"] == target.index_name:
        return cast("Mapping[str, Any]", answer)
    why = f"{target.index_name} has not received it: the write alias was moved"
    return {"status": _BAD_REQUEST, "error": {"type": "not_in_its_index", "reason": why}}


def _may_be_of_another(rejection: Rejection) -> bool:
    """Whether a document may be refused for another one of its request: a mapper looks at each by itself."""
    _, status, kind, why = rejection
    is_for_good = status == ITEM_FAILED or decide_item(status, kind, why) is Action.DEAD_LETTER
    return is_for_good and kind not in OF_DOCUMENT


def _rejection(composition: Composition, item: Mapping[str, Any]) -> Rejection:
    error = item.get("error", {})
    why, cause = error.get("reason", ""), error.get("caused_by", {}).get("reason", "")
    why = why if cause in why else f"{why}: {cause}"
    return Rejection(composition, item["status"], error.get("type", "unknown"), why)
