"""The commands ``syncer locks …``: list the locks in Elasticsearch and their holders, and break those of a holder.

They need no server but Elasticsearch: see `syncer.locks`.
"""

from __future__ import annotations

from typing import Annotated

import typer
from elasticsearch import Elasticsearch

from syncer.base.errors import LockError
from syncer.cli import render
from syncer.cli.context import AsJson, Yes, confirm, load_settings
from syncer.cli.render import say, show_table
from syncer.elasticsearch import client as elastic
from syncer.locks import Locks
from syncer.locks.table import INDEX, Holder, Table, readable

_SHORT_ID = 8

app = typer.Typer(help="List and break locks made of Elasticsearch documents.", no_args_is_help=True)
Index = Annotated[str, typer.Option(help="Name of the index.")]


@app.command("list")
def list_(*, index: Index = INDEX, as_json: AsJson = False) -> None:
    """List locks and their holders."""
    table = Table.find(_connect(), index)
    holders = [*table.holders().values()] if table else []
    locks = [(lock, mode, holder) for holder in holders for lock, mode in holder.locks.items()]
    if as_json:
        listed = [
            {"lock": lock, "name": readable(lock), "mode": mode, "holder": holder.id} for lock, mode, holder in locks
        ]
        render.print_json({"locks": listed, "holders": holders})
        return
    if not holders:
        say("No locks are held." if table else f"No lock was ever taken: there is no index {index}.")
    shown = []
    for lock, mode, holder in locks:
        location, lease = f"{holder.host}:{holder.process}", f"{holder.lease_seconds:g} s"
        shown.append(
            (readable(lock), mode, holder.owner, holder.id[:_SHORT_ID], location, lease, _time(holder.renewed))
        )
    show_table(("lock", "mode", "owner", "holder", "where", "lease", "renewed"), sorted(shown))


@app.command("break")
def break_(
    holder: Annotated[str, typer.Argument(metavar="HOLDER", help="Id or owner, as in `syncer locks list`.")],
    *,
    index: Index = INDEX,
    yes: Yes = False,
) -> None:
    """Break all locks of a holder.

    Rolls back its unfinished change. A holder that is still alive notices at its next write, which changes nothing.
    """
    client = _connect()
    table = Table.find(client, index)
    if table is None:
        raise LockError(f"There is no index {index}", hint="Use --index to name another index.")
    broken = _choose([*table.holders().values()], holder)
    name = f"{broken.owner} ({broken.id[:_SHORT_ID]})"
    change = "its unfinished change will be rolled back" if broken.undo else "it has no unfinished change"
    say(f"{name}, process {broken.process} on {broken.host}, holds {len(broken.locks)} locks; {change}.")
    say(f"It last renewed its lease at {_time(broken.renewed)}, by its own clock.")
    confirm("Break all its locks?", yes=yes)
    if not Locks(client, owner="syncer locks break", index=index).break_holder(broken.id):
        raise LockError(f"{name} has just renewed its lease, or another process breaks its locks", hint="Try again.")
    say(f"{name}: its locks are broken.")


def _connect() -> Elasticsearch:
    return elastic.connect(load_settings().elasticsearch)


def _choose(holders: list[Holder], name: str) -> Holder:
    """Return the only holder with this owner, or whose id begins so."""
    chosen = [holder for holder in holders if name and (holder.owner == name or holder.id.startswith(name))]
    if not chosen:
        raise LockError(f"There is no holder {name!r}", hint="To see the holders: syncer locks list")
    if len(chosen) > 1:
        hint = f"Use one of: {', '.join(holder.id[:_SHORT_ID] for holder in chosen)}"
        raise LockError(f"{name!r} matches {len(chosen)} holders", hint=hint)
    return chosen[0]


def _time(time: str) -> str:
    return time.replace("T", " ").replace("+00:00", " UTC")
