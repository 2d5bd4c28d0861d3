"""The command ``syncer reference``: the tables of the reference pages, as Markdown, from the program itself.

Each page of the reference has its table between two comments; a test compares it with what this prints.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from syncer.base import settings
from syncer.base.metrics import MEASURED, Question
from syncer.monitoring.gauges import GAUGES

_KINDS = {
    "string": "text",
    "password": "secret",
    "path": "file",
    "integer": "whole number",
    "boolean": "true or false",
    "object": "mapping",
    "array": "list",
}


class Topic(StrEnum):
    """What a reference page lists."""

    COMMANDS = "commands"
    SETTINGS = "settings"
    METRICS = "metrics"


def reference(context: typer.Context, topic: Annotated[Topic, typer.Argument(help="What to list.")]) -> None:
    """Print a table of the reference as Markdown."""
    typer.echo(markdown(topic, context.find_root().command))


def markdown(topic: Topic, group: Any) -> str:
    """Return the list of all commands of a group, or of all settings or metrics."""
    pages = {Topic.COMMANDS: _commands(group), Topic.SETTINGS: _settings(), Topic.METRICS: _metrics()}
    return "\n".join(pages[topic])


def _commands(group: Any) -> Iterator[str]:
    yield from _parameters(param for param in group.params if "completion" not in param.name)
    for name, command in _flattened(group, "syncer"):
        arguments = [_name(param) for param in command.params if param.param_type_name == "argument"]
        has_options = len(arguments) < len(command.params)
        usage = " ".join([name, *arguments, *(["[OPTIONS]"] if has_options else [])])
        yield from ("", f"## {name}", "", "```", usage, "```", "")
        yield inspect.cleandoc(command.callback.__doc__ or "").replace("<", "&lt;")
        if command.params:
            yield ""
            yield from _parameters(command.params)


def _flattened(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _flattened(command, f"{prefix} {name}")
        elif not command.hidden:
            yield f"{prefix} {name}", command


def _parameters(params: Iterable[Any]) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for param in params:
        default = f"{param.default:g}" if isinstance(param.default, float) else param.default
        has_default = param.default not in (None, False, (), [])
        meaning = f"{param.help or ''}{f' Default: {default}.' if has_default else ''}".replace("|", "\\|")
        if param.param_type_name == "argument":
            yield f"| `{_name(param)}` | {meaning} |"
        else:
            value = f" `{param.metavar}`" if param.metavar else ""
            yield f"| {', '.join(f'`{name}`' for name in param.opts)}{value} | {meaning} |"


def _name(argument: Any) -> str:
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return f"{name}{'…' if argument.nargs == -1 else ''}"


def _settings() -> Iterator[str]:
    for name, section in settings.Settings.model_fields.items():
        model: Any = section.annotation
        meanings, schema = _attribute_docstrings(model), model.model_json_schema()["properties"]
        yield from (f"## {name}", "", inspect.cleandoc(model.__doc__ or ""), "")
        yield from ("| setting | kind | default | meaning |", "|---|---|---|---|")
        for field, info in model.model_fields.items():
            yield f"| `{name}.{field}` | {_kind(schema[field])} | {_default(info)} | {meanings.get(field, '')} |"
        yield ""


def _attribute_docstrings(model: type) -> Mapping[str, str]:
    """Return the docstring below each attribute of a class."""
    definition: Any = ast.parse(inspect.getsource(model)).body[0]
    found = {}
    for attribute, below in zip(definition.body, definition.body[1:], strict=False):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split()).replace("``", "`")
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(kind) for kind in schema["anyOf"] if kind.get("type") != "null"))
    kind = str(schema.get("format", schema["type"]))
    return _KINDS.get(kind, kind)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**none**"
    value = info.get_default(call_default_factory=True)
    if value in (None, {}, (), []):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _metrics() -> Iterator[str]:
    for question in Question:
        yield from (f"## {question}", "", "| metric | type | labels | source | meaning |", "|---|---|---|---|---|")
        for metric, source in (
            *((metric, "the servers") for metric in GAUGES),
            *((m, "this daemon") for m in MEASURED),
        ):
            if metric.question is question:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                yield f"| `{metric.name}` | {metric.kind} | {labels} | {source} | {metric.meaning} |"
        yield ""
