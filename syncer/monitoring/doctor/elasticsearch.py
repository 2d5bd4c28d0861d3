"""Checks of Elasticsearch: that an index keeps what was written to it, and that nothing else writes there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from syncer.base.errors import SyncerError
from syncer.base.model import Role, Target
from syncer.documents import definition, registry
from syncer.documents.registry import Document
from syncer.elasticsearch.indices import GC_DELETES_SECONDS, PIPELINES, seconds
from syncer.indexing import failover
from syncer.monitoring.doctor.check import Check, Finding, Fix, advice, check, consider, shell, sql, wrong
from syncer.monitoring.doctor.deployment import Deployment

_LIFECYCLE = "index.lifecycle.name"
_GC_DELETES = "index.gc_deletes"
_IDENTITY = "SELECT installation, epoch FROM syncer.cluster_identity"
# The next writer finds another cluster identity than the recorded one, and enters a new epoch.
_NEW_EPOCH = sql(
    "UPDATE syncer.cluster_identity SET sequence = 0;",
    "Then restart the daemons, which enter a new epoch, and run for each document: syncer verify DOCUMENT --repair",
)


@check("elasticsearch.reach", "Elasticsearch answers", 1)
def _reach(deployment: Deployment) -> Iterator[Finding]:
    """Documents are written there."""
    if (failure := deployment.failure("elasticsearch")) is not None:
        yield wrong(failure.message, advice(failure.hint))


@check("elasticsearch.gc_deletes", f"Every index remembers deletes for {GC_DELETES_SECONDS} s", 2)
def _gc_deletes(deployment: Deployment) -> Iterator[Finding]:
    """If a delete is forgotten, a delayed write brings the document back."""
    for one, index in deployment.each_index():
        found = index["settings"].get(_GC_DELETES, "60s")
        if seconds(found) < GC_DELETES_SECONDS:
            fix = _settings(deployment, one, {_GC_DELETES: f"{GC_DELETES_SECONDS}s"})
            yield wrong(f"{one.index_name} forgets deletes after {found}", fix)


@check("elasticsearch.durability", "No current index has an asynchronous translog", 1)
def _durability(deployment: Deployment) -> Iterator[Finding]:
    """A crash of Elasticsearch would lose the last seconds of acknowledged writes, and nothing repeats them."""
    name = "index.translog.durability"
    for one, index in deployment.each_index():
        if one.role is Role.CURRENT and index["settings"].get(name, "request").lower() == "async":
            yield wrong(f"{name} of {one.index_name} is async", _settings(deployment, one, {name: "request"}))


@check("elasticsearch.refresh", "Every current index is refreshed", 3)
def _refresh(deployment: Deployment) -> Iterator[Finding]:
    """With a refresh_interval of -1 searches show an old state."""
    name = "index.refresh_interval"
    for one, index in deployment.each_index():
        if one.role is Role.CURRENT and str(index["settings"].get(name, "1s")).startswith("-1"):
            yield wrong(f"{name} of {one.index_name} is -1", _settings(deployment, one, {name: None}))


@check("elasticsearch.pipelines", "No ingest pipeline changes documents", 3)
def _pipelines(deployment: Deployment) -> Iterator[Finding]:
    """A document must equal its SELECT."""
    for one, index in deployment.each_index():
        for name in PIPELINES:
            found = index["settings"].get(name, "_none")
            if found != "_none":
                note = f"Then write the documents again: syncer backfill {one.name}"
                yield wrong(f"{name} of {one.index_name} is {found}", _settings(deployment, one, {name: None}, note))


@check("elasticsearch.lifecycle", "No lifecycle policy manages an index", 3, 4)
def _lifecycle(deployment: Deployment) -> Iterator[Finding]:
    """It could delete the index, or roll it over to one that syncer does not write."""
    for one, index in deployment.each_index():
        if policy := index["settings"].get(_LIFECYCLE):
            fix = request(deployment, "POST", f"/{one.index_name}/_ilm/remove")
            yield wrong(f"The policy {policy} manages {one.index_name}", fix)


@check("elasticsearch.guard", "No late delete can create an index in place of a write alias", 2)
def _guard(deployment: Deployment) -> Iterator[Finding]:
    """A delete with an external version creates the index that it names; syncer's index template forbids that."""
    for one in deployment.documents[:1]:
        templates = deployment.elasticsearch.indices.get_index_template().body["index_templates"]
        fitting = [
            template
            for template in templates
            if any(_fits(pattern, one.target.write_alias) for pattern in template["index_template"]["index_patterns"])
        ]
        first = max(fitting, key=_priority, default=None)
        if first is None or first["index_template"].get("allow_auto_create") is not False:
            priority = 500 if first is None else max(500, _priority(first) + 1)
            body = {"index_patterns": ["*-syncer-write"], "allow_auto_create": False, "priority": priority}
            yield wrong(
                "syncer's index template, which forbids to create an index named like a write alias, is "
                + ("missing" if first is None else f"overridden by {first['name']}"),
                request(deployment, "PUT", "/_index_template/syncer", body),
            )


def _priority(template: Mapping[str, Any]) -> int:
    return int(template["index_template"].get("priority", 0))


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


@check("elasticsearch.orphans", "Every index that this installation made is known to Postgres", 1, 3)
def _orphans(deployment: Deployment) -> Iterator[Finding]:
    """Nothing writes to an orphan. After a restore of Postgres, searches may still find one, as it was."""
    installation = registry.installation(deployment.schema)
    known = {one.index_name for one in deployment.documents}
    active = {one.index for one in deployment.documents}
    names = [Target.of_index("*").write_alias, *sorted(f"{index}-*" for index in active)]
    found = deployment.elasticsearch.indices.get(
        index=names, expand_wildcards="all", filter_path="*.aliases,*.mappings._meta.syncer"
    ).body
    for name, index in sorted(found.items()):
        mark = index.get("mappings", {}).get("_meta", {}).get("syncer", {})
        if mark.get("installation") != installation or name in known:
            continue
        aliases = index.get("aliases", {}).keys() - {Target.of_index(name).write_alias}
        delete = request(deployment, "DELETE", f"/{name}")
        if not aliases:
            yield consider(f"{name}, made for {mark.get('document')}, is not active any more", delete)
        elif searched := sorted(aliases - active):  # status reports an alias that leads to two indices
            again = shell("syncer apply", "It takes the index over, or makes another, and writes every document.")
            yield wrong(
                f"Searches of {' and '.join(searched)} find {name}, made for {mark.get('document')}, which Postgres "
                "does not know",
                again if not _defined(deployment).isdisjoint(searched) else delete,
            )


def _defined(deployment: Deployment) -> set[str]:
    """The indices of the definitions in the config folder."""
    try:
        return {one.index for one in definition.load_all(deployment.config_folder)}
    except SyncerError:
        return set()


@check("elasticsearch.epoch", "Elasticsearch has recorded the epoch", 2)
def _epoch(deployment: Deployment) -> Iterator[Finding]:
    """The record keeps a restore of Postgres from using versions twice."""
    for installation, epoch in deployment.schema.execute(_IDENTITY):
        recorded = deployment.index.read_epoch(installation)
        if recorded < epoch:
            path = f"/syncer-state/_doc/epoch-{installation}?version={epoch}&version_type=external_gte"
            note = (
                "Not if this database is a copy: then set kafka.topic and kafka.group. "
                "For a minute after the record was deleted, Elasticsearch may answer 409."
            )
            yield wrong(
                f"Postgres is in epoch {epoch}, and Elasticsearch has recorded {recorded or 'none'}: syncer-state was "
                "deleted, or this database is a copy",
                request(deployment, "PUT", path, {"epoch": epoch}, note),
            )
        elif recorded > epoch and failover.is_entered(deployment.postgres):
            yield wrong(
                f"Elasticsearch has recorded epoch {recorded}, and Postgres is in {epoch}: its disk was restored",
                _NEW_EPOCH,
            )


# Fixes


def _settings(deployment: Deployment, document: Document, settings: Mapping[str, Any], note: str = "") -> Fix:
    return request(deployment, "PUT", f"/{document.index_name}/_settings", settings, note)


def request(
    deployment: Deployment, method: str, path: str, body: Mapping[str, Any] | None = None, note: str = ""
) -> Fix:
    """A request to Elasticsearch as a fix, with credentials named rather than shown."""
    settings = deployment.settings.elasticsearch
    words = ["curl -sS --fail-with-body -X", method]
    if settings.api_key:
        words.append('-H "Authorization: ApiKey $SYNCER_ELASTICSEARCH_API_KEY"')
    elif settings.username:
        words.append('-u "$SYNCER_ELASTICSEARCH_USERNAME:$SYNCER_ELASTICSEARCH_PASSWORD"')
    if settings.ca_certs:
        words.append(f"--cacert {settings.ca_certs}")
    node = "${SYNCER_ELASTICSEARCH_URL%%,*}" if len(settings.urls) > 1 else "$SYNCER_ELASTICSEARCH_URL"
    words.append(f'"{node}{path}"')
    if body is not None:
        words.append(f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'")
    return shell(" ".join(words), note)


CHECKS = tuple(one for one in globals().values() if isinstance(one, Check))
