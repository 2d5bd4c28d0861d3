"""The commands ``syncer locks …``: list the locks in Elasticsearch and their holders, and break those of a holder.

They need no server but Elasticsearch: see `syncer.locks`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer
from elasticsearch import Elasticsearch

from syncer.base import log, settings
from syncer.base.errors import LockError
from syncer.cli import parameters, render
from syncer.cli.render import Rows, say
from syncer.elasticsearch import client as elastic
from syncer.locks import Locks
from syncer.locks.names import readable
from syncer.locks.table import INDEX, Entry, Holder, Table

_SHORT_ID = 8

app = typer.Typer(help="List and break locks made of Elasticsearch documents.", no_args_is_help=True)

LocksIndex = Annotated[str, typer.Option("--index", metavar="INDEX", help="The index that contains the locks.")]


@app.command("list")
def list_(*, index: LocksIndex = INDEX, as_json: parameters.AsJson = False) -> None:
    """List locks and their holders."""
    table = Table.find(_connect(), index)
    holders, entries = table.read_all() if table else ([], [])
    if as_json:
        locks = [asdict(entry) | {"name": readable(entry.lock)} for entry in entries]
        render.print_json({"locks": locks, "holders": [asdict(holder) for holder in holders]})
    elif table is None:
        typer.echo(f"There is no index {index}: no lock has ever been taken there.")
    else:
        _show(holders, entries)


@app.command("break")
def break_(
    holder: Annotated[
        str, typer.Argument(metavar="HOLDER", help="Holder id or owner, as shown by `syncer locks list`.")
    ],
    *,
    index: LocksIndex = INDEX,
    yes: parameters.Yes = False,
) -> None:
    """Break all locks of a holder.

    Rolls back its unfinished change. A holder that is still alive is told at its next write, which changes nothing.
    """
    client = _connect()
    table = Table.find(client, index)
    if table is None:
        raise LockError(
            f"There is no index {index}", hint="No lock has ever been taken there. Use --index to name another index."
        )
    holders, entries = table.read_all()
    found = _choose(holders, holder)
    name = f"{found.owner} ({found.id[:_SHORT_ID]})"
    if not yes:
        count = sum(entry.holder == found.id for entry in entries)
        change = "its unfinished change will be rolled back" if found.undo else "it has no unfinished change"
        typer.echo(
            f"{name}, process {found.process} on {found.host}, holds {count} locks; {change}.\n"
            f"It last renewed its lease at {_time(found.renewed)}, by its own clock."
        )
    parameters.confirm("Break all its locks?", yes=yes)
    if not Locks(client, owner="syncer locks break", index=index).break_holder(found.id):
        raise LockError(f"{name} has just renewed its lease, or another process breaks its locks", hint="Try again.")
    typer.echo(f"{name}: its locks are broken.")


def _connect() -> Elasticsearch:
    loaded = settings.load_only(settings.SearchSettings)
    log.configure(loaded.log, is_command=True)
    return elastic.connect(loaded.elasticsearch)


def _choose(holders: list[Holder], name: str) -> Holder:
    """Return the only holder with this owner, or whose id begins so."""
    found = [holder for holder in holders if name and (holder.owner == name or holder.id.startswith(name))]
    if not found:
        hint = "Run syncer locks list, and use an id from the column holder."
        raise LockError(f"There is no holder {name!r}", hint=hint)
    if len(found) > 1:
        hint = f"Use one of: {', '.join(holder.id[:_SHORT_ID] for holder in found)}"
        raise LockError(f"{name!r} matches {len(found)} holders", hint=hint)
    return found[0]


def _show(holders: list[Holder], entries: list[Entry]) -> None:
    console = render.console(sys.stdout)
    locks = [
        (readable(entry.lock), entry.mode, _time(entry.since), entry.owner, entry.holder[:_SHORT_ID])
        for entry in sorted(entries, key=lambda entry: (entry.lock, entry.since))
    ]
    if locks:
        console.print(Rows(("lock", "mode", "since", "owner", "holder"), locks))
    else:
        say(console, "No locks are held.")
    if holders:
        say(console)
        console.print(Rows(("holder", "owner", "where", "lease", "renewed", "changing"), [*map(_row, holders)]))


def _row(holder: Holder) -> tuple[str, ...]:
    where, lease = f"{holder.host}:{holder.process}", f"{holder.lease_seconds:g} s"
    changing = "documents" if holder.undo else ""
    return holder.id[:_SHORT_ID], holder.owner, where, lease, _time(holder.renewed), changing


def _time(time: str) -> str:
    return time.replace("T", " ").replace("+00:00", " UTC")
