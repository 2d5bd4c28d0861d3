"""What the README and the pages beside it name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from syncer import events
from syncer.cli import app
from syncer.doctor import examination
from syncer.settings import Settings

REPOSITORY = Path(__file__).parent.parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
SECTIONS = {name: field.annotation for name, field in Settings.model_fields.items()}
COMMANDS = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
CHECKS = {one.id for one in examination.CHECKS}
EVENTS = set(events.CATALOGUE)


def quoted(page: Path) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`\n]+)`", page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_is_named_is_one(page: Path) -> None:
    """A name that begins with a section of the settings goes on with one of its settings, or is an event."""
    names = [one for one in quoted(page) if re.fullmatch(rf"({'|'.join(SECTIONS)})\.[a-z_]+", one)]
    assert [
        one
        for one in names
        if one.partition(".")[2] not in SECTIONS[one.partition(".")[0]].model_fields  # type: ignore[union-attr]
        and one not in EVENTS | CHECKS
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_named_is_one(page: Path) -> None:
    """What is quoted as a command of syncer's is one."""
    named = {one.split()[1] for one in quoted(page) if re.match(r"syncer [a-z]", one)}
    assert named - COMMANDS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    """A link that is not to the web leads to what is in the repository."""
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8"))
    assert [one for one in links if not (page.parent / one).exists()] == []
