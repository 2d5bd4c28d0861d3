"""The commands ``syncer locks …``: who holds what in Elasticsearch, and taking it away from who does not let go.

They need nothing but Elasticsearch: see `syncer.locks`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from elasticsearch import Elasticsearch
from rich.console import Console
from rich.markup import escape

from syncer import index as elastic, settings, telemetry, terminal
from syncer.entered import word
from syncer.errors import LockError
from syncer.locks import Locks, Recovery
from syncer.locks.burial import Burial
from syncer.locks.change import Intent
from syncer.locks.entries import Entry
from syncer.locks.holders import Holder
from syncer.locks.names import readable
from syncer.locks.registry import INDEX, Registry, find

_WATCHED_SECONDS_MAX = 15.0
_LOOK_SECONDS = 0.1
_SHORT_ID = 8
_ATTEMPTS = 5
_PATIENCE_SECONDS = 60
_NAMED_MAX = 5
_OUTCOMES = {
    Recovery.FINISH: "All of them are changed as it was going to; if Elasticsearch refuses one, all are put back as "
    "they were. To put them back in any case: --changes roll-back",
    Recovery.ROLL_BACK: "All of them are put back as they were before it began.",
}

app = typer.Typer(
    help="Locks of those who write to Elasticsearch alone: who holds what; break what is held for ever.",
    no_args_is_help=True,
)

LocksIndex = Annotated[str, typer.Option("--index", help="The index that the locks are in.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


def _recoveries(incomplete: str) -> list[str]:
    return [one.value for one in Recovery if one.startswith(incomplete)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A holder, as we have seen it.

    Args:
        holder: What it says of itself; None if it has left, and only entries of it are there.
        term: The greatest in which it, or whoever buries it, can have written.
        still_seconds: For how long we have not seen it move; None if we did not watch.
        has_moved: Whether we have seen it move.
    """

    holder: Holder | None
    term: int = 0
    still_seconds: float | None = None
    has_moved: bool = False

    @property
    def state(self) -> str:
        """Whether it lives, as far as we know."""
        if self.holder is None:
            return "has left"
        if self.holder.is_dead:
            return "dead"
        if self.still_seconds is None:
            return ""
        return f"moved {self.still_seconds:.1f} s ago" if self.has_moved else f"still for {self.still_seconds:.1f} s"


@app.command("list")
def list_(
    *,
    index: LocksIndex = INDEX,
    watch: Annotated[
        bool, typer.Option("--watch", help="Watch for as long as a lease lasts, 15 s at most, to tell who is alive.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Every lock: who holds it, how, since when; how its holder is, and what it may have left half done."""
    registry = find(_connect(), index)
    known, entries = ({}, []) if registry is None else _known(registry, is_watched=watch)
    if as_json:
        typer.echo(json.dumps(_as_json(known, entries), indent=2))
    elif registry is None:
        typer.echo(f"There is no index {index}: nobody has ever taken a lock there.")
    else:
        _show(terminal.console(sys.stdout), known, entries)


@app.command("break")
def break_(
    holder: Annotated[str, typer.Argument(metavar="HOLDER", help="As `syncer locks list` shows it, or its owner.")],
    *,
    index: LocksIndex = INDEX,
    recovery: Annotated[
        Recovery,
        typer.Option(
            "--changes",
            metavar="WHAT",
            parser=word(Recovery),
            autocompletion=_recoveries,
            help="What to do with changes that it may have left half done: finish or roll-back.",
        ),
    ] = Recovery.FINISH,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take all locks away from a holder, alive or not; what it had begun is finished, or rolled back.

    If it is alive after all it finds out, and can change nothing more.
    """
    client = _connect()
    registry = find(client, index)
    if registry is None:
        raise LockError(f"There is no index {index}", hint="Nobody has ever taken a lock there: --index names another.")
    known, entries = _known(registry, is_watched=False)
    id_, found = _choose(known, holder)
    if not yes:
        typer.echo(_foretold(registry, id_, found.holder, entries, recovery))
        typer.confirm("Take all locks away from it?", abort=True)
    with Locks(client, owner="syncer locks break", index=index, recovery=recovery) as locks:
        done = _bury(locks, id_)
    if not done.is_gone:
        raise LockError(f"{_called(id_, found)} moves all the time, or somebody else is at it", hint="Try again.")
    typer.echo(f"{_called(id_, found)}: {done.value}.")


def _connect() -> Elasticsearch:
    loaded = settings.load_search()
    telemetry.configure(loaded.log, is_command=True)
    return elastic.connect(loaded.elasticsearch)


def _known(registry: Registry, *, is_watched: bool) -> tuple[dict[str, _Known], list[Entry]]:
    """All holders, also those of which only entries are left; and all entries."""
    known = {one.id: _Known(holder=one, term=registry.term(seen)) for one, seen in registry.holders.all()}
    if is_watched:
        known = _watched(registry, known)
    entries = list(registry.entries.of())  # as they are now: who was watched may have left, and others have come
    for id_ in {one.holder for one in entries} - known.keys():
        look = registry.holders.look(id_)
        known[id_] = _Known(holder=None) if look is None else _Known(holder=look[0], term=registry.term(look[1]))
    return known, entries


def _watched(registry: Registry, known: Mapping[str, _Known]) -> dict[str, _Known]:
    """The same, once we have watched them for as long as the longest lease lasts; those who leave are left out."""
    began = time.monotonic()
    leases = [one.holder.lease_seconds for one in known.values() if one.holder is not None and not one.holder.is_dead]
    terms, moved_at = {id_: one.term for id_, one in known.items()}, dict.fromkeys(known, began)
    seen: dict[str, _Known] = {}
    while True:
        now = time.monotonic()
        seen = {}
        for id_ in known:
            look = registry.holders.look(id_)
            if look is None:
                continue
            term = registry.term(look[1])
            if term != terms[id_]:
                terms[id_], moved_at[id_] = term, now
            has_moved = moved_at[id_] > began
            seen[id_] = _Known(holder=look[0], term=term, still_seconds=now - moved_at[id_], has_moved=has_moved)
        if now - began >= min(_WATCHED_SECONDS_MAX, max(leases, default=0)):
            return seen
        time.sleep(_LOOK_SECONDS)


def _choose(known: Mapping[str, _Known], name: str) -> tuple[str, _Known]:
    """The holder that is called so.

    Raises:
        LockError: There is none, or more than one.
    """
    wanted = [
        (id_, one)
        for id_, one in known.items()
        if name and (name == id_ or _bare(id_).startswith(name) or (one.holder and name == one.holder.owner))
    ]
    if len(wanted) == 1:
        return wanted[0]
    if wanted:
        raise LockError(
            f"{len(wanted)} holders are called {name!r}",
            hint=f"Say which: {', '.join(_called(id_, one) for id_, one in wanted)}",
        )
    raise LockError(f"There is no holder {name!r}", hint="syncer locks list shows them: take what is under holder.")


def _foretold(registry: Registry, id_: str, holder: Holder | None, entries: Sequence[Entry], recovery: Recovery) -> str:
    """What breaking its locks will do."""
    held = [one for one in entries if one.holder == id_]
    if holder is None:
        return f"{_short(id_)} has left; {len(held)} of its entries are still there, and are removed."
    return (
        f"{holder.owner} ({_short(id_)}), process {holder.process} on {holder.host}, holds {len(held)} locks. "
        "If it is alive it finds out at its next write, which changes nothing."
        + ("" if holder.intent is None else f"\n{_changing(registry, holder.intent)}\n{_OUTCOMES[recovery]}")
    )


def _changing(registry: Registry, intent: Intent) -> str:
    """What a holder may have left half done."""
    counts: Counter[str] = Counter()
    such_as: list[str] = []
    for number in range(intent.pages):
        for one in registry.intents.page(intent, number):
            counts[one.after.index] += 1
            if len(such_as) < _NAMED_MAX:
                such_as.append(one.after.id)
    documents = ", ".join(f"{count:,} documents of {name}" for name, count in counts.items())
    return f"It is changing {documents}, or has left that half done; such as {', '.join(such_as)}."


def _bury(locks: Locks, holder: str) -> Burial:
    """Bury it; whoever lives may just have moved."""
    for _ in range(_ATTEMPTS):
        done = locks.bury(holder, timeout=_PATIENCE_SECONDS)
        if done.is_gone:
            break
    return done


def _as_json(known: Mapping[str, _Known], entries: Sequence[Entry]) -> dict[str, Any]:
    return {
        "locks": [asdict(one) | {"name": readable(one.lock)} for one in entries],
        "holders": [
            asdict(one.holder)
            | {
                "term": one.term,
                "still_seconds": None if one.still_seconds is None else round(one.still_seconds, 1),
                "state": one.state or None,
            }
            for one in known.values()
            if one.holder is not None
        ],
    }


def _show(console: Console, known: Mapping[str, _Known], entries: Sequence[Entry]) -> None:
    busy = {one.holder for one in entries} | {id_ for id_, one in known.items() if one.holder and one.holder.intent}
    _show_idle(console, {id_: one for id_, one in known.items() if id_ not in busy})
    if not busy:
        console.print("Nobody holds a lock.")
        return
    locks = terminal.table("lock", "mode", "since", "owner", "holder")
    for entry in sorted(entries, key=lambda one: (one.lock, one.since)):
        holder = known[entry.holder].holder
        owner = "" if holder is None else escape(holder.owner)
        locks.add_row(escape(readable(entry.lock)), entry.mode, _said(entry.since), owner, _short(entry.holder))
    holders = terminal.table("holder", "owner", "where", "lease", "term", "changing", "state")
    for id_ in sorted(busy):
        one = known[id_]
        if one.holder is None:
            holders.add_row(_short(id_), "", "", "", "", "", one.state)
            continue
        where, lease = f"{escape(one.holder.host)}:{one.holder.process}", f"{one.holder.lease_seconds:g} s"
        changing = "[yellow]documents" if one.holder.intent else ""
        holders.add_row(_short(id_), escape(one.holder.owner), where, lease, str(one.term), changing, _coloured(one))
    console.print(locks, "", holders, sep="\n")
    if any(one.holder is not None and one.holder.intent for one in known.values()):
        console.print("\nWhat is being changed, or was left half done, whoever takes the locks finishes or rolls back.")


def _show_idle(console: Console, idle: Mapping[str, _Known]) -> None:
    """Who holds nothing and does not move: killed, it has left its document behind."""
    still = [_called(id_, one) for id_, one in sorted(idle.items()) if _is_late(one)]
    if still:
        more = f" and {len(still) - _NAMED_MAX:,} more" if len(still) > _NAMED_MAX else ""
        console.print(
            f"Hold nothing, and did not move for as long as a lease: {escape(', '.join(still[:_NAMED_MAX]))}{more}. "
            "Whoever was killed so has left a document, which goes with: syncer locks break HOLDER\n",
            soft_wrap=True,
        )


def _is_late(one: _Known) -> bool:
    return one.holder is not None and (one.still_seconds or 0) >= one.holder.lease_seconds


def _coloured(one: _Known) -> str:
    if one.holder is not None and one.holder.is_dead:
        return f"[red]{one.state}"
    return f"[yellow]{one.state}" if _is_late(one) else one.state


def _said(time_: str) -> str:
    return time_.replace("T", " ").replace("+00:00", " UTC")


def _called(id_: str, one: _Known) -> str:
    return f"{one.holder.owner} ({_short(id_)})" if one.holder else _short(id_)


def _short(id_: str) -> str:
    return _bare(id_)[:_SHORT_ID]


def _bare(id_: str) -> str:
    return id_.rpartition(":")[2]
