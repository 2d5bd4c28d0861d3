"""Physical indices in Elasticsearch: made, changed, found, with their aliases.

A physical index has two aliases: the one that searches use, and one of its own that writes name, so that a late
write never re-creates an index that was dropped. An index says in its ``_meta`` whose it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import elasticsearch
from elasticsearch import Elasticsearch

from syncer.definition import flat_settings
from syncer.errors import IndexingError
from syncer.model import Target

GC_DELETES_SECONDS = 3600
"""How long our indices remember the version of a deleted document; Elasticsearch's own default is 60."""

_TEMPLATE = "syncer"
_NOT_FOUND = 404
# Settings that Elasticsearch gives to an index and takes from nobody, or that say where it is.
_PRIVATE = (
    *("index.uuid", "index.version.", "index.creation_date", "index.provided_name", "index.resize.", "index.history."),
    *("index.routing.allocation.", "index.blocks.", "index.lifecycle.", "index.verified_before_close"),
)


class Indices:
    """The physical indices of all documents."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client

    def exists(self, target: Target) -> bool:
        """Whether the physical index is there, with the alias that writes name."""
        return bool(self._client.indices.exists_alias(index=target.index_name, name=target.write_alias))

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
        self, *, document: str, alias: str, body: Mapping[str, Any], generation: int, installation: str
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
        mappings = dict(body.get("mappings", {}))
        ours = {"document": document, "installation": installation}
        mappings["_meta"] = {**mappings.get("_meta", {}), "syncer": ours}
        settings = {"index.gc_deletes": f"{GC_DELETES_SECONDS}s", **body.get("settings", {})}
        aliases = {target.write_alias: {"is_hidden": True}, alias: {}}
        self._create(document, target, settings=settings, mappings=mappings, aliases=aliases)
        return target

    def _create(
        self,
        document: str,
        target: Target,
        *,
        settings: Mapping[str, Any],
        mappings: Mapping[str, Any],
        aliases: Mapping[str, Mapping[str, Any]],
    ) -> None:
        try:
            self._client.indices.create(index=target.index_name, settings=settings, mappings=mappings, aliases=aliases)
        except elasticsearch.BadRequestError as error:
            raise _refused(document, error) from error

    def restore_aliases(self, target: Target, alias: str) -> bool:
        """Give an index its aliases back; False if the index itself is gone."""
        if not self._client.indices.exists(index=target.index_name):
            return False
        add = {"index": target.index_name}
        self._client.indices.update_aliases(
            actions=[
                {"add": {**add, "alias": target.write_alias, "is_hidden": True}},
                {"add": {**add, "alias": alias}},
            ]
        )
        return True

    def change(self, *, document: str, target: Target, body: Mapping[str, Any]) -> None:
        """Bring an existing index up to what ``index.json`` says, in place.

        Raises:
            IndexingError: Elasticsearch refuses: the change needs a new index.
        """
        mappings = {key: value for key, value in body.get("mappings", {}).items() if key != "_meta"}
        settings = self._changed_settings(target, body.get("settings", {}))
        try:
            if settings:
                self._client.indices.put_settings(index=target.index_name, settings=settings)
            self._client.indices.put_mapping(index=target.index_name, body=mappings)
        except elasticsearch.BadRequestError as error:
            raise IndexingError(
                f"Elasticsearch refuses to change the index of {document} in place: {_reason(error)}",
                hint="This change needs a new index: make a new document folder with another index in its\n"
                "document.yaml, or take the change back. What was in force is in force still.",
            ) from error

    # Scratch indices: to try things on

    @contextmanager
    def scratch(self, *, document: str, alias: str, body: Mapping[str, Any]) -> Iterator[Target]:
        """An empty index that no search sees, as index.json wants it; gone afterwards.

        What an earlier one has left, that could not clean up after itself, goes away with it.

        Raises:
            IndexingError: Elasticsearch refuses the settings or the mapping.
        """
        name = f"{alias}-syncer-plan-{uuid4().hex[:8]}"
        target = Target(index_name=name, write_alias=f"{name}-syncer-write")
        settings = {
            **flat_settings(body.get("settings", {})),
            "index.hidden": True,
            "index.number_of_replicas": 0,
            "index.auto_expand_replicas": False,
        }
        try:
            self._create(
                document,
                target,
                settings=settings,
                mappings=body.get("mappings", {}),
                aliases={target.write_alias: {"is_hidden": True}},
            )
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
        answer = self._client.indices.get_settings(index=target.index_name, flat_settings=True)
        current = answer.body[target.index_name]["settings"]
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
        try:
            body = self._client.indices.get_mapping(index=index_name).body
        except elasticsearch.NotFoundError:
            return None
        meta = body[index_name]["mappings"].get("_meta", {}).get("syncer", {})
        owner: str | None = meta.get("installation")
        return owner


def _as_elasticsearch_says(value: Any) -> Any:
    """Settings come back as strings, or lists of them."""
    if isinstance(value, list):
        return [_as_elasticsearch_says(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(document: str, error: elasticsearch.ApiError) -> IndexingError:
    return IndexingError(
        f"Elasticsearch refuses the index.json of {document}: {_reason(error)}",
        hint="Settings and mappings are passed on as they stand in index.json.",
    )


def _reason(error: elasticsearch.ApiError) -> str:
    if not isinstance(error.body, dict):
        return error.message
    detail = error.body.get("error", {})
    root = (detail.get("root_cause") or [detail])[0]
    reason = str(root.get("reason", error.message))
    cause = detail.get("caused_by", {}).get("reason")
    return f"{reason}: {cause}" if cause and cause not in reason else reason
