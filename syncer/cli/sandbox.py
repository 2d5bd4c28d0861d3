"""The commands ``syncer sandbox …``: local servers for experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from syncer.cli import render
from syncer.cli.context import AsJson, NoKafka, OpenSearch
from syncer.cli.render import say

app = typer.Typer(help="Run a local Postgres, Kafka and Elasticsearch.", no_args_is_help=True)

Folder = Annotated[Path | None, typer.Option(help="The sandbox's folder; each folder is a separate sandbox.")]


def _version(versions: str, default: str) -> Any:
    return typer.Option(help=f"{versions}; by default what the folder has, or {default}.")


@app.command("start")
def start(
    *,
    folder: Folder = None,
    postgres: Annotated[str | None, _version("14 to 18", "18")] = None,
    kafka: Annotated[str | None, _version("3.9, 4.1 or 4.4", "4.1")] = None,
    elasticsearch: Annotated[str | None, _version("8 or 9", "8")] = None,
    opensearch: OpenSearch = None,
    no_kafka: NoKafka = False,
    as_json: AsJson = False,
) -> None:
    """Start the servers and print their settings.

    In a shell: eval "$(syncer sandbox start)".
    """
    from syncer.sandbox import Sandbox, Versions  # noqa: PLC0415 - its packages are an extra

    versions = Versions(postgres=postgres, kafka=kafka, elasticsearch=elasticsearch, opensearch=opensearch)
    sandbox = Sandbox(folder, versions=versions, console=render.err)
    environment = sandbox.start(with_kafka=not no_kafka).environment()
    say(f"psql: {sandbox.postgres.bin_folder / 'psql'}", to=render.err)
    exports = "\n".join(f"export {name}={value}" for name, value in environment.items())
    typer.echo(json.dumps(environment) if as_json else exports)


@app.command("stop")
def stop(*, folder: Folder = None) -> None:
    """Stop the servers and keep their data."""
    from syncer.sandbox import Sandbox  # noqa: PLC0415 - its packages are an extra

    sandbox = Sandbox(folder, console=render.err)
    running = [server.name for server in sandbox.servers if server.is_running()]
    sandbox.stop()
    result = f"Stopped {', '.join(running)}; the data stays in" if running else "No server is running in"
    say(f"{result} {sandbox.folder}", to=render.err)
