"""Each thing has one name: nothing that a person can see uses a word that the glossary has dropped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from syncer.base.metrics import MEASURED
from syncer.base.settings import Settings
from syncer.cli.app import app
from syncer.monitoring.gauges import GAUGES

REPOSITORY = Path(__file__).parent.parent.parent
GLOSSARY = (REPOSITORY / "docs" / "how-it-works.md").read_text("utf-8").partition("## Glossary")[2]
ROWS = re.findall(r"^\| (\*\*.+?) \| (.+?) \|(?: (.+?))? \|$", GLOSSARY, flags=re.MULTILINE)
DROPPED = {word for *_, words in ROWS for word in re.findall(r"\w+", words)}


def command_names(command: Any) -> set[str]:
    """The names of a command, its options and its arguments, and of the commands in it."""
    names = {command.name, *(parameter.name for parameter in command.params)}
    return names.union(*map(command_names, getattr(command, "commands", {}).values()))


def visible_names() -> set[str]:
    """Settings, commands and options, metrics and labels, tables and columns, JSON fields, classes and functions."""
    names = command_names(typer.main.get_command(app))
    for section, field in Settings.model_fields.items():
        names |= {section, *field.annotation.model_fields}  # type: ignore[union-attr]
    for metric in (*MEASURED, *GAUGES):
        names |= {metric.name, *metric.labels}
    for migration in (REPOSITORY / "migrations").glob("*.sql"):
        statements = re.sub(r"--.*", "", migration.read_text("utf-8"))
        names |= set(re.findall(r"(?:syncer\.|^    )([a-z_]+)", statements, flags=re.MULTILINE))
    for module in (REPOSITORY / "syncer").rglob("*.py"):
        lines = module.read_text("utf-8")
        names |= set(re.findall(r"^(?:    )?(?:def |class )?([a-zA-Z]\w*)[(\[:]", lines, flags=re.MULTILINE))
    return names


def test_nothing_visible_uses_a_dropped_word() -> None:
    """Names are compared word by word."""
    words = {
        word for name in visible_names() for word in re.findall("[a-z]+", re.sub("[A-Z]", r"_\g<0>", name).lower())
    }
    assert words & DROPPED == set()


def test_each_term_has_one_row_and_is_not_dropped() -> None:
    """The glossary does not contradict itself."""
    terms = [term for row in ROWS for term in re.findall(r"\*\*(.+?)\*\*", row[0] + row[1])]
    assert len(terms) == len(set(terms)) > 0
    assert DROPPED
    assert {word for term in terms for word in term.split()} & DROPPED == set()
