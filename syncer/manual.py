"""Manual: what the help of each command ends with: how it is called, and what its exit code says."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a command's help.

    Args:
        examples: Command lines.
        zero: When the exit code is 0.
        one: When it is 1, besides for errors.
    """

    examples: tuple[str, ...]
    zero: str
    one: str = ""

    @property
    def text(self) -> str:
        """In paragraphs, as Typer's epilogs are."""
        one = f" 1 {self.one}, or for an error." if self.one else " 1 for an error."
        lines = ["Examples:", *(f"  {example}" for example in self.examples)]
        return "\n\n".join([*lines, f"Exit code: 0 {self.zero};{one} 2 if it was mistyped."])


def _of(*examples: str, zero: str, one: str = "") -> Ending:
    return Ending(examples=examples, zero=zero, one=one)


ENDINGS = {
    "init": _of(
        "syncer init",
        "syncer init --table shop.orders --with shop.order_lines --document orders",
        zero="if everything was written",
    ),
    "grants": _of(
        "syncer grants --migrator migrator",
        "syncer grants --relay syncer --worker syncer --reader anna",
        zero="if there is something to grant",
    ),
    "migrate": _of("syncer migrate", zero="if the schema is current"),
    "plan": _of(
        "syncer plan",
        "syncer plan blogpost --json",
        "syncer plan --strict",
        zero="if nothing is refused",
        one="if something is, with --strict also if something is warned of",
    ),
    "apply": _of(
        "syncer apply",
        "syncer apply --yes --timeout 300",
        "syncer apply --remove blogpost",
        zero="if the definitions are in force and filled",
    ),
    "backfill": _of(
        "syncer backfill blogpost",
        'syncer backfill blogpost --where "user_id = 7" --rate 500',
        "syncer backfill blogpost --ids ids.txt",
        "syncer backfill blogpost --rebuild",
        zero="if all of it is written",
        one="if a document could not be",
    ),
    "run": _of(
        "syncer run",
        "syncer run --only relay",
        "syncer run --only workers",
        zero="if it was told to end, and all that was in hand is finished",
    ),
    "status": _of("syncer status", "syncer status --json", zero="if all is well", one="if anything is not"),
    "top": _of("syncer top", zero="if it was told to end"),
    "wait": _of("syncer wait TOKEN", zero="if nothing of the transaction is missing", one="if something is"),
    "verify": _of(
        "syncer verify",
        "syncer verify blogpost --sample 1000",
        "syncer verify blogpost --repair --json",
        zero="if every document equals its SELECT",
        one="if one does not",
    ),
    "explain": _of(
        "syncer explain blogpost 7",
        "syncer explain blogpost 7 --values --json",
        zero="if the document equals its SELECT",
        one="if it does not",
    ),
    "doctor": _of(
        "syncer doctor",
        "syncer doctor --only relay",
        "syncer doctor --strict --json",
        zero="if nothing is wrong",
        one="if something is, with --strict also if something is to be considered or cannot be seen",
    ),
    "demo": _of("syncer demo", "syncer demo --keep", "syncer demo --list", zero="if what it shows is so"),
    "sandbox start": _of('eval "$(syncer sandbox start)"', "syncer sandbox start --json", zero="if all three answer"),
    "sandbox stop": _of("syncer sandbox stop", zero="if nothing of it runs"),
    "sandbox status": _of("syncer sandbox status --json", zero="if all three run", one="if one does not"),
    "jobs list": _of("syncer jobs list", "syncer jobs list --json", zero="if they could be read"),
    "jobs show": _of("syncer jobs show 12", zero="if there is such a job"),
    "jobs pause": _of("syncer jobs pause 12", zero="if it is paused"),
    "jobs resume": _of("syncer jobs resume 12", zero="if it goes on"),
    "jobs cancel": _of("syncer jobs cancel 12", zero="if it is ended"),
    "dead-letters list": _of(
        "syncer dead-letters list",
        "syncer dead-letters list blogpost --field created --limit 20",
        zero="if they could be read",
    ),
    "dead-letters show": _of("syncer dead-letters show blogpost 7", zero="if there is such a dead letter"),
    "dead-letters retry": _of(
        "syncer dead-letters retry blogpost --field created",
        "syncer dead-letters retry --records",
        zero="if none remains",
        one="if any remains",
    ),
    "dead-letters discard": _of(
        "syncer dead-letters discard blogpost 7",
        "syncer dead-letters discard --records",
        zero="if they are forgotten",
    ),
    "locks list": _of("syncer locks list", "syncer locks list --watch", zero="if they could be read"),
    "locks break": _of("syncer locks break HOLDER", zero="if nothing is held by it"),
}
"""By the name of the command."""


def flowing(text: str) -> str:
    """A docstring without the ends of lines inside its paragraphs; what is indented stays as it is."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(one if one.startswith(" ") else " ".join(one.split()) for one in paragraphs)


class _Command(TyperCommand):
    """A command whose help does not ask for a value where none is to be given."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        return _without_type_of_flags(super().get_params(ctx))


class _Group(TyperGroup):
    """The same of several."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        return _without_type_of_flags(super().get_params(ctx))


def _without_type_of_flags(parameters: list[Any]) -> list[Any]:
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return parameters


def complete(app: typer.Typer, prefix: str = "") -> None:
    """Give each command its ending, and its help in lines as long as the terminal is wide."""
    app.info.cls = _Group
    for command in app.registered_commands:
        command.cls = _Command
        command.help = flowing(inspect.getdoc(command.callback) or "")
        name = command.name or getattr(command.callback, "__name__", "").rstrip("_").replace("_", "-")
        ending = ENDINGS.get(prefix + name)
        if ending is not None:
            command.epilog = ending.text
    for group in app.registered_groups:
        if group.typer_instance is not None:
            complete(group.typer_instance, f"{prefix}{group.name} ")
