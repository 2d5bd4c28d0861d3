"""Rules of indices and aliases, taken out."""

from __future__ import annotations

from syncer.base.model import Target
from syncer.elasticsearch.indices import Indices
from tests.mutations import Instead


def looks_at_no_search_alias(
    original: Instead, self: Indices, target: Target, *, searched_as: str | None = None
) -> bool:
    """Whatever the search alias leads to, the index counts as there."""
    is_there: bool = original(self, target)
    return is_there


def leaves_the_alias_elsewhere(original: Instead, self: Indices, alias: str, to: Target) -> None:
    """The alias leads to the index, and to whatever it led to before."""
    self._client.indices.put_alias(index=to.index_name, name=alias)
