"""Parameters that several commands take: their types, limits and shell completion."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from syncer.base import settings
from syncer.base.errors import SyncerError
from syncer.documents import definition


class Part(StrEnum):
    """A part of the daemon that can run alone."""

    RELAY = "relay"
    WORKERS = "workers"


class UsageError(typer.BadParameter):
    """The command line contradicts itself, or lacks something. Exit code 2, as for an unknown option."""

    def format_message(self) -> str:
        """Return the message alone: no single parameter is at fault."""
        return self.message


def documents(incomplete: str) -> list[str]:
    """The documents of the config folder; none if it cannot be read, because the user is typing."""
    with suppress(SyncerError, OSError):
        names = [folder.name for folder in definition.folders(settings.config_folder())]
        return [name for name in names if name.startswith(incomplete)]
    return []


def finite(value: float | None) -> float | None:
    """Reject ``nan`` and ``inf``, which a range accepts."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


Document = Annotated[str, typer.Argument(metavar="DOCUMENT", help="Document name.", autocompletion=documents)]
DocumentId = Annotated[str, typer.Argument(metavar="ID", help="The document's _id.")]
MaybeDocument = Annotated[
    str | None,
    typer.Argument(metavar="DOCUMENT", help="Document name (default: all).", autocompletion=documents),
]
OfDocument = Annotated[
    str | None,
    typer.Option("--document", metavar="DOCUMENT", help="Only this document.", autocompletion=documents),
]
_ONLY = "Only this part."
NoKafka = Annotated[bool, typer.Option("--no-kafka", help="Do without Kafka: one daemon at a time handles changes.")]
Only = Annotated[Part | None, typer.Option("--only", metavar="|".join(Part), help=_ONLY)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; docs/json.md has its fields.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Values = Annotated[bool, typer.Option("--values", help="Show field values, which may be sensitive.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", min=0, callback=finite, help="Maximum time to wait.")]
Rate = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", min=0.1, callback=finite, help="Maximum documents per second."),
]
DespiteDeadLettered = Annotated[
    bool, typer.Option("--despite-dead-lettered", help="Go on even if documents cannot be written.")
]


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a destructive step, unless the command was called with --yes.

    Raises:
        UsageError: Standard input is not a terminal.
        typer.Abort: The answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("Confirmation required, but standard input is not a terminal. Add --yes.")
    typer.confirm(question, abort=True, err=True)


class _WithoutFlagTypes:
    """Shows no type beside a flag in the help: a flag takes no value."""

    def get_params(self, ctx: typer.Context) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class that this is mixed into
        for param in found:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return found


class _Command(_WithoutFlagTypes, TyperCommand):  # type: ignore[misc]  # Typer's base class is not exported
    pass


class _CommandGroup(_WithoutFlagTypes, TyperGroup):  # type: ignore[misc]
    pass


def hide_flag_types(app: typer.Typer) -> None:
    """Let the help of all commands show types only beside options that take a value."""
    app.info.cls = _CommandGroup
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            hide_flag_types(group.typer_instance)
