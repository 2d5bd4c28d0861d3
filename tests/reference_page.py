"""The reference, from the program: ``python -m tests.reference_page`` writes docs/commands.md and docs/settings.md."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from syncer import settings
from syncer.cli import app
from syncer.settings import Settings

DOCS = Path(__file__).parent.parent / "docs"
COMMANDS, SETTINGS = DOCS / "commands.md", DOCS / "settings.md"

_COMMANDS = """\
# Commands

What each command of `syncer` does, takes and answers: the words of its own `--help`.
They are listed by `syncer` itself, if it is not told what to do; after the name of one, `--help` shows it.

A command says what it did on standard output, and everything else on standard error.
Its exit code is 0 only if what was asked for holds; 1 if it does not, or could not be done; 2 if it was mistyped.
An error is a sentence and what to do about it; `--debug`, before the name of the command, adds the traceback.
With `--json`, where there is something to read, what is on standard output is JSON and nothing else.
Settings come from a file and the environment: [Settings](settings.md).

This page is written by `python -m tests.reference_page`, from the program.
"""
_SETTINGS = """\
# Settings

`config/syncer.yaml` holds them, in sections; each is overridden by an environment variable named after it:
`worker.threads` by `SYNCER_WORKER_THREADS`.
What holds several values is JSON in the environment: `SYNCER_KAFKA_PROPERTIES='{"security.protocol": "SSL"}'`.
`SYNCER_CONFIG` names another folder than `config`.
All are read and checked once, when a program starts; a daemon that is to have others is started again.
A setting that is unknown, missing or of the wrong kind is an error, which names it.

Three have no default: `postgres.dsn`, `kafka.bootstrap_servers` and `elasticsearch.url`.

This page is written by `python -m tests.reference_page`, from `syncer/settings.py`.
"""

_NAMES = {
    str: "text",
    SecretStr: "secret",
    Path: "file",
    int: "whole number",
    float: "number",
    bool: "true or false",
}
_PLACEHOLDERS = {"float": "NUMBER", "int": "NUMBER", "str": "TEXT"}
"""What the value of an option is called, by the name of its type; else a file."""

# Commands


def commands_page() -> str:
    """Every command, with its arguments and options."""
    found = list(_commands(typer.main.get_command(app), ""))
    links = [f"[`{name.removeprefix('syncer ')}`](#{name.replace(' ', '-')})" for name, _ in found]
    return "\n".join([_COMMANDS, " ·\n".join(links), *(_command(name, one) for name, one in found)]) + "\n"


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Each command by its name; whose class they are differs from one version of the library to the next."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        elif not command.hidden:
            yield f"syncer {prefix}{name}", command


def _command(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])])
    lines = [
        f"\n## {name}\n",
        f"```\n{usage}\n```\n",
        inspect.cleandoc(command.callback.__doc__ or "").replace("<", "&lt;"),
    ]
    hints = get_type_hints(command.callback)
    rows = [(f"`{_argument(one)}`", _help(one)) for one in arguments]
    rows += [(_option(one, hints[one.name]), _help(one)) for one in options]
    if rows:
        lines += ["\n| | |\n|---|---|", *(f"| {what} | {said} |" for what, said in rows)]
    return "\n".join(lines)


def _argument(one: Any) -> str:
    name = (one.metavar or one.name).upper()
    return (name if one.required else f"[{name}]") + ("…" if one.nargs == -1 else "")


def _option(one: Any, hint: Any) -> str:
    names = ", ".join(f"`{name}`" for name in one.opts)
    kinds = [kind.__name__ for kind in (*get_args(hint), hint) if isinstance(kind, type) and kind is not type(None)]
    return names if one.is_flag else f"{names} `{one.metavar or _PLACEHOLDERS.get(next(iter(kinds), 'str'), 'FILE')}`"


def _help(one: Any) -> str:
    is_told = not getattr(one, "is_flag", False) and one.default not in (None, (), [])
    return f"{one.help or ''}{f' Default: {_number(one.default)}.' if is_told else ''}".replace("|", "\\|")


def _number(default: Any) -> Any:
    return f"{default:g}" if isinstance(default, float) else default


# Settings


def settings_page() -> str:
    """Every setting, by section."""
    parts = [_SETTINGS]
    for name, section in Settings.model_fields.items():
        kind = section.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, BaseModel)
        said = docstrings(settings, kind)
        parts.append(f"## {name}\n\n{inspect.cleandoc(kind.__doc__ or '')}\n")
        parts.append("| setting | kind | default | what it is |\n|---|---|---|---|")
        for field, info in kind.model_fields.items():
            row = (f"`{name}.{field}`", _kind(info.annotation), _default(info), said.get(field, ""))
            parts.append(f"| {' | '.join(row)} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def docstrings(module: ModuleType, kind: type) -> dict[str, str]:
    """What stands below each attribute of a class."""
    tree = ast.parse(inspect.getsource(module))
    [found] = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == kind.__name__]
    said = {}
    for attribute, below in zip(found.body, found.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name) and is_text:
            text = str(below.value.value)  # type: ignore[attr-defined]  # an expression that is a constant
            said[attribute.target.id] = re.sub(r"``([^`]+)``", r"`\1`", " ".join(textwrap.dedent(text).split()))
    return said


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{one}`" for one in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(one) for one in get_args(annotation) if one is not type(None)))
    if get_origin(annotation) is dict:
        return "mapping"
    if get_origin(annotation) in (list, tuple):
        return "list"
    if get_args(annotation):
        return _kind(get_args(annotation)[0])
    names = {
        str: "text",
        SecretStr: "secret",
        Path: "file",
        int: "whole number",
        float: "number",
        bool: "true or false",
    }
    return names.get(annotation, str(getattr(annotation, "__name__", annotation)))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**none**"
    value = info.get_default(call_default_factory=True)
    if value in (None, {}, (), []):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    COMMANDS.write_text(commands_page(), "utf-8")
    SETTINGS.write_text(settings_page(), "utf-8")
