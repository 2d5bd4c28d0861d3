"""The reference pages have the tables that the program prints. ``python -m tests.unit.test_reference`` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from syncer.base.settings import Settings
from syncer.cli.app import app
from syncer.cli.reference import Topic, attribute_docstrings, markdown

DOCS = Path(__file__).parent.parent.parent / "docs"


def expected(topic: Topic) -> tuple[Path, str, str]:
    """Return a page, its text, and the text that it should have."""
    page = DOCS / f"{topic}.md"
    text = page.read_text("utf-8")
    table = f"<!-- syncer reference {topic} -->\n{markdown(topic, typer.main.get_command(app)).rstrip()}\n<!-- end -->"
    replaced, count = re.subn(r"<!-- syncer reference .*?<!-- end -->", lambda _: table, text, flags=re.DOTALL)
    assert count == 1
    return page, text, replaced


@pytest.mark.parametrize("topic", Topic)
def test_a_reference_page_is_up_to_date(topic: Topic) -> None:
    """Its table is the one that ``syncer reference`` prints."""
    _, text, replaced = expected(topic)
    assert text == replaced, "Run: python -m tests.unit.test_reference"


@pytest.mark.parametrize("section", Settings.model_fields)
def test_every_setting_has_a_meaning(section: str) -> None:
    """The page on settings shows the docstring of each."""
    kind = Settings.model_fields[section].annotation
    assert isinstance(kind, type)
    assert kind.model_fields.keys() - attribute_docstrings(kind).keys() == set()


if __name__ == "__main__":
    for each in Topic:
        path, _, new = expected(each)
        path.write_text(new, "utf-8")
