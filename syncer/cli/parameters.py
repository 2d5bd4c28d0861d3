"""Parameters that several commands take: their types, limits and shell completion."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import typer

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


def flag(name: str, *more: str, text: str) -> Any:
    """An option that takes no value; the help shows none."""
    return typer.Option(name, *more, help=text, metavar="")


Document = Annotated[str, typer.Argument(metavar="DOCUMENT", help="Document name.", autocompletion=documents)]
MaybeDocument = Annotated[
    str | None, typer.Argument(metavar="DOCUMENT", help="Document name (default: all).", autocompletion=documents)
]
Index = Annotated[str, typer.Option("--index", metavar="INDEX", help="The index that contains the locks.")]
NoKafka = Annotated[bool, flag("--no-kafka", text="Do without Kafka: one daemon at a time handles changes.")]
AsJson = Annotated[bool, flag("--json", text="Print JSON; docs/json.md has its fields.")]
Yes = Annotated[bool, flag("--yes", "-y", text="Do not ask for confirmation.")]
Values = Annotated[bool, flag("--values", text="Show field values, which may be sensitive.")]
DespiteDeadLettered = Annotated[
    bool, flag("--despite-dead-lettered", text="Go on even if documents cannot be written.")
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
