"""What the README and the pages beside it name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from syncer.base.settings import Settings
from syncer.cli.app import app
from syncer.monitoring import doctor

REPOSITORY = Path(__file__).parent.parent.parent
DOCS = sorted((REPOSITORY / "docs").rglob("*.md"))
PAGES = [*(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *DOCS]
NAVIGATION = (REPOSITORY / "mkdocs.yml").read_text("utf-8")
SECTIONS = {name: field.annotation for name, field in Settings.model_fields.items()}
COMMANDS = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
CHECKS = {check.id for check in doctor.CHECKS}
SOURCE = "".join(file.read_text("utf-8") for file in (REPOSITORY / "syncer").rglob("*.py"))
EVENTS = set(re.findall(r'"([a-z]+\.[a-z_]+)"', SOURCE))


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
    named = {found[1] for one in quoted(page) if (found := re.match(r"syncer ([a-z][a-z-]*)", one))}
    assert named - COMMANDS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    """A link that is not to the web leads to what is in the repository, and to a heading that is there."""
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text("utf-8"))
    targets = [(page.parent / file if file else page, heading) for file, heading in links]
    assert [str(file) for file, _ in targets if not file.exists()] == []
    assert [
        (str(file), one) for file, one in targets if one and file.suffix == ".md" and one not in headings(file)
    ] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_page_is_on_the_map(page: Path) -> None:
    """docs/index.md and the site's navigation lead to every page, so that a reader finds it."""
    index = REPOSITORY / "docs" / "index.md"
    leads_to = {(index.parent / one).resolve() for one in re.findall(r"\]\(([^)#:]+)", index.read_text("utf-8"))}
    assert page in {index, *leads_to}
    assert str(page.relative_to(index.parent)) in re.findall(r": (\S+\.md)$", NAVIGATION, re.MULTILINE)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_no_page_links_out_of_the_site(page: Path) -> None:
    """The site has the pages of docs only: files of the repository are named by their path, without a link."""
    links = re.findall(
        r"\]\(([^)#:]+)", re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    )
    assert [one for one in links if not (page.parent / one).resolve().is_relative_to(REPOSITORY / "docs")] == []


def headings(page: Path) -> set[str]:
    """The headings of a page, as GitHub names them in links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in found}
