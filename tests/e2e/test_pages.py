"""What the pages tell a reader to do works, and shows what they say it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from tests.support.pages import DOCS, Part, Reader, parts
from tests.support.world import World

PARTS = [part for page in sorted(DOCS.glob("*.md")) for part in parts(page) if part.is_followed]


@pytest.fixture
def reader(empty_world: World) -> Iterator[Reader]:
    """A reader with empty servers; its indices are deleted afterwards, whatever their names are."""
    yield Reader(world=empty_world)
    with empty_world.elasticsearch() as client, suppress(psycopg.errors.UndefinedTable):
        for (index,) in empty_world.sql("SELECT index_name FROM syncer.document"):
            client.indices.delete(index=index, ignore_unavailable=True)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.page}:{part.blocks[0].line}")
def test_a_page_can_be_followed(reader: Reader, part: Part) -> None:
    """Each of its steps, in their order, ends as the page says."""
    reader.follow(part)
