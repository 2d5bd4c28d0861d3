"""The command ``syncer events``: what happened lately."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from syncer.base import migrations, postgres, settings, timeline
from syncer.base.timeline import DAYS_KEPT
from syncer.cli import parameters, render

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_STYLES = {"warning": "yellow", "error": "red"}


def _period(value: str) -> str:
    if not re.fullmatch(r"[0-9]{1,6}[smhd]", value):
        raise typer.BadParameter(f"{value} is not a period such as 30m, 24h or 7d")
    return value


def events(
    *,
    since: Annotated[
        str,
        typer.Option(metavar="PERIOD", callback=_period, help=f"How far to go back: 30m, 24h; at most {DAYS_KEPT}d."),
    ] = "24h",
    as_json: parameters.AsJson = False,
) -> None:
    """Show what happened lately, newest last.

    Shows daemons that start, stop or disappear, new leaders, outages once they are over,
    failovers, suspended and resumed documents, jobs that wrote every document, applies and
    verifies. Postgres keeps them for a week.
    """
    with postgres.connect(settings.load().postgres, name="events") as connection:
        migrations.require_current(connection)
        found = timeline.read(connection, seconds=int(since[:-1]) * _SECONDS[since[-1]])
    out = render.console(sys.stdout)
    if as_json:
        render.print_json([note.as_json() for note in found])
    elif not found:
        render.say(out, f"Nothing happened in the last {since}.")
    else:
        rows = [
            (
                f"{note.at:%Y-%m-%d %H:%M:%S}",
                (note.message, _STYLES.get(note.level, "")),
                f"{note.host}, {note.process}",
            )
            for note in found
        ]
        out.print(render.table(("at (UTC)", "event", "host, process"), rows))
