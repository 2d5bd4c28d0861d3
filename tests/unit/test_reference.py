"""The reference pages have the tables that the program prints. ``python -m tests.unit.test_reference`` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from syncer.cli.app import app
from syncer.cli.reference import Topic, markdown

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
    """Its table is the one that ``syncer reference`` prints, and no setting lacks a meaning."""
    _, text, replaced = expected(topic)
    assert text == replaced, "Run: python -m tests.unit.test_reference"
    assert not re.search(r"\| *\|$", replaced.replace("| | |", ""), re.MULTILINE)


if __name__ == "__main__":
    for each in Topic:
        path, _, new = expected(each)
        path.write_text(new, "utf-8")
