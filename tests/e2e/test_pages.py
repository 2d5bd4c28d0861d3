"""What the pages tell a reader to do works, and shows what they say it shows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.support import preloaded
from tests.support.pages import DOCS, Part, Reader, parts
from tests.support.world import World

PARTS = [part for page in sorted(DOCS.glob("*.md")) for part in parts(page) if part.is_followed]


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """The command, ready to run."""
    with tempfile.TemporaryDirectory(prefix="syncer-") as folder:
        preloaded.program(Path(folder))
        yield Path(folder)


@pytest.fixture
def reader(empty_world: World, programs: Path) -> Iterator[Reader]:
    """A reader with empty servers; its indices are deleted afterwards, whatever their names are."""
    yield Reader(world=empty_world, programs=programs)
    with empty_world.elasticsearch() as client, suppress(psycopg.errors.UndefinedTable):
        for (index,) in empty_world.sql("SELECT index_name FROM syncer.document"):
            client.indices.delete(index=index, ignore_unavailable=True)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.page}:{part.blocks[0].line}")
def test_a_page_can_be_followed(reader: Reader, part: Part) -> None:
    """Each of its steps, in their order, ends as the page says."""
    reader.follow(part)
