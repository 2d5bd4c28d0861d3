"""The command ``syncer reference``: the tables of the reference pages, as Markdown, from the program itself.

Each page of the reference has its table between two comments; a test compares it with what this prints.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from syncer.base import settings
from syncer.base.metrics import CATALOGUE, Question

_KINDS = {
    str: "text",
    SecretStr: "secret",
    Path: "file",
    int: "whole number",
    float: "number",
    bool: "true or false",
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
    lines = {Topic.COMMANDS: lambda: _commands(group), Topic.SETTINGS: _settings, Topic.METRICS: _metrics}[topic]
    return "\n".join(lines())


def _commands(group: Any) -> Iterator[str]:
    hints = get_type_hints(group.callback)
    yield from _table(
        (_option(param, hints[param.name]), _help(param)) for param in group.params if param.name in hints
    )
    for name, command in _flattened(group, "syncer"):
        yield from _command(name, command)


def _flattened(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _flattened(command, f"{prefix} {name}")
        elif not command.hidden:
            yield f"{prefix} {name}", command


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    usage = " ".join([name, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])])
    yield from ("", f"## {name}", "", "```", usage, "```", "")
    yield inspect.cleandoc(command.callback.__doc__ or "").replace("<", "&lt;")
    hints = get_type_hints(command.callback)
    rows = [(f"`{_argument(argument)}`", _help(argument)) for argument in arguments]
    rows += [(_option(option, hints[option.name]), _help(option)) for option in options]
    if rows:
        yield ""
        yield from _table(rows)


def _table(rows: Any) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for name, meaning in rows:
        yield f"| {name} | {meaning} |"


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper()
    return (name if parameter.required else f"[{name}]") + ("…" if parameter.nargs == -1 else "")


def _option(parameter: Any, hint: Any) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    if parameter.is_flag:
        return names
    kinds = [kind for kind in (*get_args(hint), hint) if isinstance(kind, type) and kind is not type(None)]
    placeholder = {int: "NUMBER", float: "NUMBER", Path: "FILE"}.get(next(iter(kinds), str), "TEXT")
    return f"{names} `{parameter.metavar or placeholder}`"


def _help(parameter: Any) -> str:
    has_default = not getattr(parameter, "is_flag", False) and parameter.default not in (None, (), [])
    default = f"{parameter.default:g}" if isinstance(parameter.default, float) else parameter.default
    return f"{parameter.help or ''}{f' Default: {default}.' if has_default else ''}".replace("|", "\\|")


def _settings() -> Iterator[str]:
    for name, section in settings.Settings.model_fields.items():
        kind = section.annotation
        assert isinstance(kind, type)  # for the type checker: each section is a model
        assert issubclass(kind, BaseModel)  # the same
        meanings = attribute_docstrings(kind)
        yield from (f"## {name}", "", inspect.cleandoc(kind.__doc__ or ""), "")
        yield from ("| setting | kind | default | meaning |", "|---|---|---|---|")
        for field, info in kind.model_fields.items():
            yield f"| `{name}.{field}` | {_kind(info.annotation)} | {_default(info)} | {meanings.get(field, '')} |"
        yield ""


def attribute_docstrings(kind: type) -> Mapping[str, str]:
    """Return the docstring below each attribute of a class."""
    [definition] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)  # for the type checker
    found = {}
    for attribute, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found[attribute.target.id] = " ".join(text.split()).replace("``", "`")
    return found


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(kind) for kind in arguments if kind is not type(None)))
    if origin is dict:
        return "mapping"
    if origin in (list, tuple):
        return "list"
    if arguments:
        return _kind(arguments[0])
    return _KINDS.get(annotation, str(getattr(annotation, "__name__", annotation)))


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
        for metric in CATALOGUE.values():
            if metric.question is question:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                source = "the servers" if metric.is_polled else "this daemon"
                yield f"| `{metric.name}` | {metric.kind} | {labels} | {source} | {metric.meaning} |"
        yield ""
