"""The command ``syncer wait``: until a transaction is indexed."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from syncer import settings, telemetry, terminal
from syncer.entered import number
from syncer.passage import Waited
from syncer.waiting import TIMEOUT_SECONDS, Waiter
from syncer.wording import amount


def wait(
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="What SELECT syncer.token() has returned in that transaction.")
    ],
    *,
    timeout: Annotated[
        float, typer.Option(metavar="NUMBER", parser=number(least=0), help="Seconds to wait.")
    ] = TIMEOUT_SECONDS,
    searchable: Annotated[
        bool, typer.Option("--searchable", help="Until searches show it, not only reads by id; refreshes the indices.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Wait until everything that a transaction has committed is indexed.

    Its token is asked for inside the transaction, before its commit, and waited for
    after it. Exit code 0 only if nothing of it is missing; what could not be written,
    or is halted, is said, and not waited for.

    --json has xid, is_complete, is_searchable, is_captured, seconds (by stage: relay,
    workers, jobs and refresh), jobs, parked, halted and unfilled.
    """
    loaded = settings.load()
    telemetry.configure(loaded.log, is_command=True)
    with Waiter(loaded) as waiter:
        waited = waiter.wait(token, timeout_seconds=timeout, searchable=searchable)
    if as_json:
        typer.echo(json.dumps(waited.as_json(), indent=2))
    else:
        _show(terminal.console(sys.stdout), waited)
    if not waited.is_complete:
        raise typer.Exit(1)


def _show(out: Console, waited: Waited) -> None:
    what = "searchable" if waited.is_searchable else "indexed"
    if not waited.is_captured:
        out.print(f"Transaction {waited.xid} has changed nothing that a document reads.")
        return
    after = f"after {sum(waited.seconds.values()):.3f} s"
    if waited.is_complete:
        out.print(f"Transaction {waited.xid} is {what}, {after}.")
    else:
        out.print(f"Transaction {waited.xid} is {what}, {after}, but for:")
    for one in waited.parked:
        out.print(f"  {escape(one.document)} {escape(one.id)} is parked: {escape(one.error)}")
    for name in waited.halted:
        out.print(f"  {escape(name)} is halted: see syncer status")
    for name in waited.unfilled:
        out.print(f"  {escape(name)} has lost a job: run syncer backfill {escape(name)}")
    if waited.jobs:
        out.print(f"{amount(len(waited.jobs), 'job')} waited for: {', '.join(map(str, waited.jobs))}")
