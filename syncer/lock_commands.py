"""The commands ``syncer locks …``: who holds what in Elasticsearch, and taking it away from who does not let go.

They need nothing but Elasticsearch: see `syncer.locks`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from elasticsearch import Elasticsearch
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from syncer import index as elastic, settings, telemetry, terminal
from syncer.errors import LockError
from syncer.locks import Locks, Recovery
from syncer.locks.entries import Entry
from syncer.locks.holders import Holder
from syncer.locks.names import readable
from syncer.locks.registry import INDEX, Registry

_WATCHED_SECONDS_MAX = 15.0
_LOOK_SECONDS = 0.2
_SHORT_ID = 8

app = typer.Typer(
    help="Locks of those who write to Elasticsearch alone: who holds what; break what is held for ever.",
    no_args_is_help=True,
)

LocksIndex = Annotated[str, typer.Option("--index", help="The index that the locks are in.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


@app.command("list")
def list_(
    *,
    index: LocksIndex = INDEX,
    watch: Annotated[
        bool, typer.Option("--watch", help="Watch for as long as a lease lasts, to tell who is alive.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Every lock: who holds it, how, since when; and what the dead have left behind."""
    registry = Registry(_connect(), index=index)
    holders, entries = _read(registry)
    alive = _alive(registry, holders) if watch else None
    if as_json:
        typer.echo(json.dumps(_as_json(holders, entries, alive), indent=2))
    else:
        _show(terminal.console(sys.stdout), holders, entries, alive)


@app.command("break")
def break_(
    holder: Annotated[str, typer.Argument(metavar="HOLDER", help="As `syncer locks list` shows it.")],
    *,
    index: LocksIndex = INDEX,
    recovery: Annotated[
        Recovery, typer.Option("--changes", help="What to do with changes that it may have left half done.")
    ] = Recovery.FINISH,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take all locks away from a holder, alive or not; what it had begun is finished, or rolled back.

    If it is alive after all it finds out, and can change nothing more.
    """
    client = _connect()
    found = _find(_read(Registry(client, index=index))[0], holder)
    if not yes:
        typer.confirm(f"Take all locks away from {_called(found)}?", abort=True)
    with Locks(client, owner="syncer locks break", index=index, recovery=recovery) as locks:
        is_gone = locks.bury(found.id)
    if not is_gone:
        raise LockError(f"{_called(found)} has moved meanwhile, or somebody else is at it", hint="Try again.")
    done = {Recovery.FINISH: "finished", Recovery.ROLL_BACK: "rolled back"}[recovery]
    typer.echo(f"{_called(found)} holds nothing any more." + (f" What it had begun is {done}." if found.intent else ""))


def _connect() -> Elasticsearch:
    loaded = settings.load_search()
    telemetry.configure(loaded.log, is_command=True)
    return elastic.connect(loaded.elasticsearch)


def _read(registry: Registry) -> tuple[list[Holder], list[Entry]]:
    if not registry.exists():
        return [], []
    return [holder for holder, _ in registry.holders.all()], list(registry.entries.of())


def _find(holders: Sequence[Holder], name: str) -> Holder:
    wanted = [one for one in holders if name in (one.owner, one.id) or _short(one.id).startswith(name)]
    if len(wanted) == 1:
        return wanted[0]
    hint = "As `syncer locks list` shows them: the holder, or its owner if that is only one."
    raise LockError(f"{len(wanted)} holders are called {name!r}" if wanted else f"No holder {name!r}", hint=hint)


def _alive(registry: Registry, holders: Sequence[Holder]) -> set[str]:
    """Those who move while we look, for as long as the longest lease lasts."""
    moved: set[str] = set()
    still = {one.id: one.renewals for one in holders if not one.is_dead}
    deadline = time.monotonic() + min(_WATCHED_SECONDS_MAX, max([one.lease_seconds for one in holders], default=0))
    while still and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        for id_ in list(still):
            found = registry.holders.look(id_)
            if found is None or found[0].renewals != still[id_]:
                del still[id_]
                moved |= set() if found is None else {id_}
    return moved


def _state(holder: Holder | None, alive: set[str] | None) -> str:
    if holder is None or holder.is_dead:
        return "dead"
    if alive is None:
        return ""
    return "alive" if holder.id in alive else "does not move"


def _as_json(holders: Sequence[Holder], entries: Sequence[Entry], alive: set[str] | None) -> dict[str, Any]:
    return {
        "locks": [asdict(one) | {"name": readable(one.lock)} for one in entries],
        "holders": [asdict(one) | {"state": _state(one, alive) or None} for one in holders],
    }


def _show(console: Console, holders: Sequence[Holder], entries: Sequence[Entry], alive: set[str] | None) -> None:
    if not entries and not any(one.is_dead for one in holders):
        console.print("Nobody holds a lock.")
        return
    known = {one.id: one for one in holders}
    names = ("lock", "mode", "since", "owner", "where", "holder", "state")
    table = Table(*(Column(name, overflow="fold") for name in names), box=None, pad_edge=False, header_style="bold")
    for entry in sorted(entries, key=lambda one: (one.lock, one.since)):
        holder = known.get(entry.holder)
        owner = ("", "") if holder is None else (escape(holder.owner), f"{escape(holder.host)}:{holder.process}")
        state = _state(holder, alive)
        table.add_row(
            escape(readable(entry.lock)),
            entry.mode,
            entry.since.replace("T", " ").replace("+00:00", " UTC"),
            *owner,
            _short(entry.holder),
            f"[red]{state}" if state == "dead" else f"[yellow]{state}" if state == "does not move" else state,
        )
    console.print(table)
    for one in holders:
        if one.intent is not None:
            console.print(
                f"[yellow]{escape(_called(one))} is changing documents, or has left that half done:[/yellow] whoever "
                "takes its locks finishes it or rolls it back."
            )


def _called(holder: Holder) -> str:
    return f"{holder.owner} ({_short(holder.id)})"


def _short(id_: str) -> str:
    return id_.rpartition(":")[2][:_SHORT_ID]
