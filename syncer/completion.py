"""Completion: what a shell offers for an argument. Says nothing of what fails: a person is in the middle of a line."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from syncer import definition, settings
from syncer.errors import SyncerError

PARTS = ("relay", "workers")


def documents(incomplete: str) -> list[str]:
    """The documents of the config folder."""
    with suppress(SyncerError, OSError):
        names = [folder.name for folder in definition.folders(settings.config_folder())]
        return [one for one in names if one.startswith(incomplete)]
    return []


def parts(incomplete: str) -> list[str]:
    """The parts of the daemon that may run alone."""
    return [one for one in PARTS if one.startswith(incomplete)]


Document = Annotated[str, typer.Argument(metavar="DOCUMENT", help="Which document.", autocompletion=documents)]
MaybeDocument = Annotated[
    str | None,
    typer.Argument(metavar="DOCUMENT", help="Which document; all of them if left out.", autocompletion=documents),
]
Part = Annotated[
    str | None,
    typer.Option("--only", metavar="PART", help="relay or workers: only that part.", autocompletion=parts),
]
