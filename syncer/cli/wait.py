"""The command ``syncer wait``: wait until a transaction is indexed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from syncer.base import log, settings
from syncer.base.formatting import amount
from syncer.cli import parameters, render
from syncer.cli.parameters import finite, flag
from syncer.cli.render import say
from syncer.verify.wait import TIMEOUT_SECONDS, Waited, Waiter


def wait(
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="The result of SELECT syncer.token() in that transaction.")
    ],
    *,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, callback=finite, help="Maximum time to wait.")
    ] = TIMEOUT_SECONDS,
    searchable: Annotated[
        bool, flag("--searchable", text="Wait until searches show it; refreshes the indices.")
    ] = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Wait until a transaction is indexed.

    Get the token inside the transaction, before its commit. Dead letters and suspended
    documents are reported, not waited for. Exit code 0 only if everything is indexed.
    """
    loaded = settings.load()
    log.configure(loaded.log, is_command=True)
    with Waiter(loaded) as waiter:
        waited = waiter.wait(token, timeout_seconds=timeout, searchable=searchable)
    if as_json:
        render.print_json(waited.as_json())
    else:
        _show(render.console(sys.stdout), waited)
    if not waited.is_complete:
        raise typer.Exit(1)


def _show(out: Console, waited: Waited) -> None:
    if not waited.is_captured:
        say(out, f"Transaction {waited.xid} changed nothing that a document reads.")
        return
    what = "searchable" if waited.is_searchable else "indexed"
    end = "." if waited.is_complete else ", except:"
    say(out, f"Transaction {waited.xid} is {what}, after {waited.seconds:.3f} s{end}")
    for letter in waited.dead_lettered:
        say(out, f"  {letter.document} {letter.id} is dead-lettered: {letter.error}")
    for name in waited.suspended:
        say(out, f"  {name} is suspended: see syncer status")
    for name in waited.incomplete:
        say(out, f"  {name} has lost a job: run syncer backfill {name}")
    if waited.jobs:
        say(out, f"{amount(len(waited.jobs), 'job')} waited for: {', '.join(map(str, waited.jobs))}")
