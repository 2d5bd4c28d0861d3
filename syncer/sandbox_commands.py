"""The commands ``syncer sandbox …``: real servers on this machine, to try things on."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from syncer import terminal
from syncer.sandbox import ConsoleReporter, Sandbox, Status

app = typer.Typer(
    help="Real Postgres, Kafka and Elasticsearch on this machine, to try things on.", no_args_is_help=True
)

out = terminal.console(sys.stdout)
err = terminal.console(sys.stderr)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="FOLDER", help="Where the sandbox lives. Each folder is a sandbox of its own."),
]


@app.command("start")
def start(*, folder: Folder = None, as_json: AsJson = False) -> None:
    """Start the servers, and print the three settings: eval "$(syncer sandbox start)"."""
    sandbox = Sandbox(folder, report=ConsoleReporter(err))
    environment = sandbox.start().environment()
    err.print(f"A psql for it is {sandbox.postgres.bin_folder / 'psql'}", markup=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(environment))
    else:
        for name, value in environment.items():
            typer.echo(f"export {name}={value}")


@app.command("stop")
def stop(*, folder: Folder = None) -> None:
    """Stop the servers. Their data stays."""
    sandbox = Sandbox(folder, report=ConsoleReporter(err))
    running = [one.name for one in sandbox.status().servers if one.running]
    sandbox.stop()
    if running:
        said = f"Stopped {', '.join(running)}; the data stays in {sandbox.folder}"
    else:
        said = f"No server runs in {sandbox.folder}"
    err.print(said, markup=False, soft_wrap=True)


@app.command("status")
def status(*, folder: Folder = None, as_json: AsJson = False) -> None:
    """Which servers run, and where. Exit code 0 only if all do."""
    seen = Sandbox(folder).status()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(seen), indent=2, default=str))
    else:
        show_sandbox(out, seen)
    if seen.endpoints is None:
        raise typer.Exit(1)


def show_sandbox(console: Console, seen: Status) -> None:
    """Which servers run, and where."""
    servers = terminal.table("server", "state", "process", "address", "log")
    for one in seen.servers:
        state = "[green]running" if one.running else "[red]stopped"
        servers.add_row(one.name, state, str(one.pid or ""), one.address or "", str(one.log_file))
    console.print(servers)
