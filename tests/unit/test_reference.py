"""The reference pages have what the program declares. ``python -m tests.unit.test_reference`` writes them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic.fields import FieldInfo
from typer.cli import get_docs_for_click

from syncer.base.metrics import MEASURED, Question
from syncer.base.settings import Settings
from syncer.cli.app import app
from syncer.monitoring.gauges import GAUGES

DOCS = Path(__file__).parent.parent.parent / "docs"


def commands() -> str:
    """All commands, as Typer documents them."""
    command: Any = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="syncer", title="syncer", indent=1)
    # Every command has --help; the lists of commands have shortened texts.
    text = re.sub(r"\* `--(help|install-completion|show-completion)`.*\n", "", text)
    return re.sub(r"\*\*(Options\*\*:\n\n|Commands\*\*:\n\n(\* .*\n)*)\n", "", text)


def settings() -> Iterator[str]:
    """A table for each section of the settings."""
    for name, section in Settings.model_fields.items():
        model: Any = section.annotation
        meanings, schema = attribute_docstrings(model), model.model_json_schema()["properties"]
        yield from (f"## {name}", "", inspect.cleandoc(model.__doc__ or ""), "")
        yield from ("| setting | kind | default | meaning |", "|---|---|---|---|")
        for field, field_info in model.model_fields.items():
            yield f"| `{name}.{field}` | {kind(schema[field])} | {default(field_info)} | {meanings.get(field, '')} |"
        yield ""


def attribute_docstrings(model: type) -> dict[str, str]:
    """The docstring below each attribute of a class."""
    definition: Any = ast.parse(inspect.getsource(model)).body[0]
    docstrings = {}
    for attribute, below in zip(definition.body, definition.body[1:], strict=False):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docstrings[name] = " ".join(text.split()).replace("``", "`")
    return docstrings


def kind(schema: Mapping[str, Any]) -> str:
    """What a setting may be."""
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(kind(option) for option in schema["anyOf"] if option.get("type") != "null"))
    return str(schema.get("format", schema["type"]))


def default(field_info: FieldInfo) -> str:
    """What a setting is if it is not given."""
    if field_info.is_required():
        return "**none**"
    value = field_info.get_default(call_default_factory=True)
    if value in (None, {}, (), []):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def metrics() -> Iterator[str]:
    """A table of metrics for each question of an operator."""
    declared = [*((metric, "the servers") for metric in GAUGES), *((metric, "this daemon") for metric in MEASURED)]
    for question in Question:
        yield from (f"## {question}", "", "| metric | type | labels | source | meaning |", "|---|---|---|---|---|")
        for metric, source in declared:
            if metric.question is question:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                yield f"| `{metric.name}` | {metric.kind} | {labels} | {source} | {metric.meaning} |"
        yield ""


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": lambda: "\n".join(settings()),
    "metrics": lambda: "\n".join(metrics()),
}


def expected(name: str) -> tuple[Path, str, str]:
    """Return a page, its text, and the text that it should have between its two comments."""
    page = DOCS / f"{name}.md"
    text = page.read_text("utf-8")
    tables = f"<!-- generated -->\n{PAGES[name]().rstrip()}\n<!-- end -->"
    replaced, count = re.subn(r"<!-- generated -->.*?<!-- end -->", lambda _: tables, text, flags=re.DOTALL)
    assert count == 1
    return page, text, replaced


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_up_to_date(name: str) -> None:
    """It has what the program declares, and no setting lacks a meaning."""
    _, text, replaced = expected(name)
    assert text == replaced, "Run: python -m tests.unit.test_reference"
    assert not re.search(r"\| *\|$", replaced.replace("| | |", ""), re.MULTILINE)


if __name__ == "__main__":
    for page in PAGES:
        path, _, new = expected(page)
        path.write_text(new, "utf-8")
