"""What the README and the pages beside it name is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from syncer.base.settings import Settings
from syncer.cli.app import app
from syncer.monitoring import doctor

REPOSITORY = Path(__file__).parent.parent.parent
INDEX = REPOSITORY / "docs" / "index.md"
DOCS = sorted((REPOSITORY / "docs").rglob("*.md"))
PAGES = [*(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *DOCS]
ROOT: Any = typer.main.get_command(app)
COMMANDS = ROOT.commands
CALL = re.compile(r"(?:\bsyncer|{_COMMAND}) ((?:(?! syncer )[^`\n|;&#])*)")
"""A command line, in a page or in a text of the program."""
SOURCE = "".join(file.read_text("utf-8") for file in (REPOSITORY / "syncer").rglob("*.py"))
NAMES = {check.id for check in doctor.CHECKS} | set(re.findall(r'"([a-z]+\.[a-z_]+)"', SOURCE))
"""The checks, and whatever is written like an event in the program."""
NAMES |= {
    f"{section}.{name}"
    for section, field in Settings.model_fields.items()
    for name in field.annotation.model_fields  # type: ignore[union-attr]
}


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def headings(page: Path) -> set[str]:
    """The headings of a page, as GitHub names them in links."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in titles}


def unknown_options(text: str) -> set[str]:
    """The options in command lines that their commands do not have."""
    unknown = set()
    for call in CALL.findall(text):
        command = ROOT
        for word in call.split():
            command = getattr(command, "commands", {}).get(word, command)
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        named = re.findall(r" (--[a-z][a-z-]+)", call)
        unknown |= {f"{command.name} {option}" for option in named if option not in options}
    return unknown


def test_the_program_names_options_that_are_there() -> None:
    """In hints and in what the demo prints."""
    assert unknown_options(SOURCE) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    """Settings, commands and options, files and headings that it links to; and no page of docs links out of them."""
    text = page.read_text("utf-8")
    quoted = re.findall(r"`([^`\n]+)`", text)
    sections = "|".join(Settings.model_fields)
    assert [name for name in quoted if re.fullmatch(rf"({sections})\.[a-z_]+", name) and name not in NAMES] == []
    named = {call[1] for words in quoted if (call := re.match(r"syncer ([a-z][a-z-]*)", words))}
    assert named - COMMANDS.keys() == set()
    assert unknown_options(text) == set()
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", prose(page))
    for file, heading in [(page.parent / file if file else page, heading) for file, heading in links]:
        assert file.exists()
        assert not heading or file.suffix != ".md" or heading in headings(file), f"{file}#{heading}"
        assert page not in DOCS or file.resolve().is_relative_to(REPOSITORY / "docs")


def test_every_page_is_on_the_map() -> None:
    """docs/index.md and the site's navigation lead to every page, so that a reader finds it."""
    linked = {(INDEX.parent / file).resolve() for file in re.findall(r"\]\(([^)#:]+)", INDEX.read_text("utf-8"))}
    assert set(DOCS) - {INDEX, *linked} == set()
    navigation = re.findall(r": (\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert {str(page.relative_to(INDEX.parent)) for page in DOCS} - set(navigation) == set()
