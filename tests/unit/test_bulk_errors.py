"""How long an index is waited for that refuses documents, by a clock that goes when the test says so."""

from __future__ import annotations

import pytest

from syncer.base.errors import DocumentError
from syncer.base.model import Target
from syncer.documents.registry import Document
from syncer.elasticsearch.reader import Holdings
from syncer.indexing.bulk_errors import PATIENCE_SECONDS, Patience
from syncer.lineage.dependencies import Dependencies
from tests.unit.test_trouble import Clock

DOCUMENT = Document(
    name="blogpost",
    revision=1,
    index="blog",
    select="",
    affects={},
    index_body={},
    dependencies=Dependencies(
        canonical_select="",
        id_type="bigint",
        fields=(),
        root=None,
        root_key=None,
        tables={},
        views=(),
        shapes={},
    ),
    target=Target(index_name="blog-000001", write_alias="blog-write"),
)


class Unavailable(Holdings):
    """What Elasticsearch says of an index without a primary."""

    def __init__(self) -> None:
        pass

    def takes_documents(self, index_name: str) -> bool:
        """It takes none."""
        return not index_name


def refuse(patience: Patience) -> None:
    """Elasticsearch refuses a document."""
    patience.require_needed(DOCUMENT, "unavailable_shards_exception: away", is_blocked=False)


def test_an_index_suspends_once_it_has_refused_for_a_minute() -> None:
    """Refusals that come now and then are one outage."""
    clock = Clock()
    patience = Patience(Unavailable(), clock=clock)
    for _ in range(int(PATIENCE_SECONDS) // 20 + 1):
        refuse(patience)
        clock.now += 20
    with pytest.raises(DocumentError):
        refuse(patience)


def test_an_outage_of_an_hour_ago_does_not_count() -> None:
    """A job was paused, so nothing has succeeded since: the next refusal is the first one of another outage."""
    clock = Clock()
    patience = Patience(Unavailable(), clock=clock)
    refuse(patience)
    clock.now += 3600
    refuse(patience)
    clock.now += PATIENCE_SECONDS / 2
    refuse(patience)
    clock.now += PATIENCE_SECONDS
    with pytest.raises(DocumentError):
        refuse(patience)
