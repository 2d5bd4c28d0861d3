"""The commands ``syncer locks …``: list the locks in Elasticsearch and their holders, and break those of a holder.

They need no server but Elasticsearch: see `syncer.locks`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from elasticsearch import Elasticsearch
from rich.console import Console

from syncer.base import log, settings
from syncer.base.errors import LockError
from syncer.cli import parameters, render
from syncer.cli.render import Part, Rows, say
from syncer.elasticsearch import client as elastic
from syncer.locks import Locks
from syncer.locks.entries import Entry
from syncer.locks.holders import Holder
from syncer.locks.intents import Intent
from syncer.locks.names import readable
from syncer.locks.registry import INDEX, Registry, find

_SHORT_ID = 8
_ATTEMPTS = 5
_PATIENCE_SECONDS = 60
_NAMED_MAX = 5

app = typer.Typer(
    help="List and break locks made of Elasticsearch documents.",
    no_args_is_help=True,
)

LocksIndex = Annotated[str, typer.Option("--index", metavar="INDEX", help="The index that contains the locks.")]


@app.command("list")
def list_(*, index: LocksIndex = INDEX, as_json: parameters.AsJson = False) -> None:
    """List locks and their holders."""
    registry = find(_connect(), index)
    if registry is None and not as_json:
        typer.echo(f"There is no index {index}: no lock has ever been taken there.")
        return
    holders, entries = ([], []) if registry is None else _read(registry)
    if as_json:
        said = {
            "locks": [asdict(one) | {"name": readable(one.lock)} for one in entries],
            "holders": [asdict(one) for one in holders],
        }
        render.print_json(said)
    else:
        _show(render.console(sys.stdout), holders, entries)


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
    registry = find(client, index)
    if registry is None:
        raise LockError(
            f"There is no index {index}", hint="No lock has ever been taken there. Use --index to name another index."
        )
    holders, entries = _read(registry)
    id_, name = _choose(holders, entries, holder)
    if not yes:
        typer.echo(_preview(registry, id_, holders, entries))
    parameters.confirm("Break all its locks?", yes=yes)
    with Locks(client, owner="syncer locks break", index=index) as locks:
        # A holder that is alive may just have renewed its lease.
        is_done = any(locks.bury(id_, timeout=_PATIENCE_SECONDS) for _ in range(_ATTEMPTS))
    if not is_done:
        raise LockError(f"{name} keeps renewing its lease, or another process is breaking its locks", hint="Try again.")
    typer.echo(f"{name}: it holds nothing any more.")


def _connect() -> Elasticsearch:
    loaded = settings.load_search()
    log.configure(loaded.log, is_command=True)
    return elastic.connect(loaded.elasticsearch)


def _read(registry: Registry) -> tuple[list[Holder], list[Entry]]:
    """All holders and all entries; of a holder that has left, entries may still be there."""
    return [holder for holder, _ in registry.holders.all()], list(registry.entries.of())


def _choose(holders: Sequence[Holder], entries: Sequence[Entry], name: str) -> tuple[str, str]:
    """The id of the holder that a person calls so, and what to call it.

    Raises:
        LockError: There is none, or more than one.
    """
    owners = dict.fromkeys(one.holder for one in entries) | {one.id: one.owner for one in holders}
    wanted = {
        id_: f"{owner} ({_short(id_)})" if owner else _short(id_)
        for id_, owner in owners.items()
        if name and (name in (id_, owner) or _bare(id_).startswith(name))
    }
    if len(wanted) > 1:
        raise LockError(f"{name!r} matches {len(wanted)} holders", hint=f"Use one of: {', '.join(wanted.values())}")
    if not wanted:
        raise LockError(
            f"There is no holder {name!r}", hint="Run syncer locks list, and use an id from the column holder."
        )
    return next(iter(wanted.items()))


def _preview(registry: Registry, id_: str, holders: Sequence[Holder], entries: Sequence[Entry]) -> str:
    """What breaking its locks will do."""
    count = sum(one.holder == id_ for one in entries)
    holder = next((one for one in holders if one.id == id_), None)
    if holder is None:
        return f"{_short(id_)} left {count} entries behind; they will be removed."
    return (
        f"{holder.owner} ({_short(id_)}), process {holder.process} on {holder.host}, holds {count} locks. "
        f"It last renewed its lease at {_time(holder.renewed)}, by its own clock."
        + ("" if holder.intent is None else f"\n{_changing(registry, holder.intent)}")
    )


def _changing(registry: Registry, intent: Intent) -> str:
    """What a holder may have left half done."""
    counts: Counter[str] = Counter()
    such_as: list[str] = []
    for number in range(intent.pages):
        for one in registry.intents.page(intent, number):
            counts[one.index] += 1
            if len(such_as) < _NAMED_MAX:
                such_as.append(one.id)
    documents = ", ".join(f"{count:,} documents of {name}" for name, count in counts.items())
    return (
        f"It may have unfinished changes to {documents}; such as {', '.join(such_as)}. "
        "They are rolled back: each document is as it was before."
    )


def _show(console: Console, holders: Sequence[Holder], entries: Sequence[Entry]) -> None:
    owners = {one.id: one.owner for one in holders}
    locks = [
        (readable(one.lock), one.mode, _time(one.since), owners.get(one.holder, "has left"), _short(one.holder))
        for one in sorted(entries, key=lambda one: (one.lock, one.since))
    ]
    if locks:
        console.print(Rows(("lock", "mode", "since", "owner", "holder"), locks))
    else:
        say(console, "No locks are held.")
    if holders:
        say(console)
        rows = [_holder(one) for one in holders]
        console.print(Rows(("holder", "owner", "where", "lease", "renewed", "changing"), rows))


def _holder(one: Holder) -> tuple[Part, ...]:
    renewed = ("dead", "red") if one.is_dead else _time(one.renewed)
    changing = "documents" if one.intent else ""
    return _short(one.id), one.owner, f"{one.host}:{one.process}", f"{one.lease_seconds:g} s", renewed, changing


def _time(said: str) -> str:
    return said.replace("T", " ").replace("+00:00", " UTC")


def _short(id_: str) -> str:
    return _bare(id_)[:_SHORT_ID]


def _bare(id_: str) -> str:
    return id_.rpartition(":")[2]
