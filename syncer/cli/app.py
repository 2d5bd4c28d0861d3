"""The command line: all commands by their names, each loaded once it is called, and how an error is shown.

Commands print results on standard output and everything else on standard error. The exit code is 0 only on success, 1
for a negative result or an error, 2 for a usage error, and 3 if `verify` is undecided. An error is one sentence and a
hint; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from enum import StrEnum
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from typer.core import TyperGroup

from syncer.base import log, migrations, postgres, settings
from syncer.base.error_policy import explain
from syncer.base.errors import HangingError, SyncerError
from syncer.base.lifecycle import Stop, Stopping
from syncer.cli import render
from syncer.cli.context import NoKafka, OpenSearch, UsageError, Yes, confirm, flag
from syncer.cli.render import say
from syncer.monitoring import daemons

_EXIT_SECONDS = 5.0
"""How long the process may take to exit once its components have stopped."""

# In the order in which a newcomer needs them: the panel, the module, perhaps with another name in it, and examples.
_COMMANDS = {
    "init": ("Set up", "init", "`syncer init --table shop.orders --with shop.order_lines --name orders`"),
    "migrate": ("Set up", "app", "`syncer migrate`"),
    "plan": ("Set up", "apply", "`syncer plan`, `syncer plan blogpost --json`"),
    "apply": ("Set up", "apply", "`syncer apply`, `syncer apply blogpost --yes`, `syncer apply --remove blogpost`"),
    "detach": ("Set up", "apply", "`syncer detach`, `syncer detach --uninstall`"),
    "run": ("Operate", "app", "`syncer run`, `syncer run --only relay`"),
    "status": ("Operate", "status", "`syncer status`, `syncer status --json`"),
    "events": ("Operate", "status", "`syncer events`, `syncer events --since 7d --json`"),
    "doctor": ("Operate", "doctor", "`syncer doctor`, `syncer doctor --json`"),
    "wait": ("Operate", "status", "`syncer wait TOKEN --timeout 10`"),
    "verify": ("Repair", "verify", "`syncer verify`, `syncer verify blogpost --values`, `syncer verify --repair`"),
    "explain": ("Repair", "verify", "`syncer explain blogpost 7 --values`"),
    "backfill": ("Repair", "load", "`syncer backfill blogpost`, `syncer backfill blogpost --ids -`"),
    "demo": ("Try", "app", "`syncer demo --keep`, `syncer demo --no-kafka`, `syncer demo --list`"),
    "jobs": ("Operate", "jobs.app", ""),
    "index": ("Repair", "load.index_app", ""),
    "dead-letters": ("Repair", "load.letters_app", ""),
    "locks": ("Locks for your programs", "locks.app", ""),
    "sandbox": ("Try", "sandbox.app", ""),
}


class _Commands(Mapping[str, Any]):
    """Loads the module of a command once it is called, or shown in the help: the start of one is mostly loading."""

    def __getitem__(self, name: str) -> Any:
        panel, path, examples = _COMMANDS[name]
        module, _, attribute = path.partition(".")
        command_or_group = getattr(import_module(f"syncer.cli.{module}"), attribute or name)
        alone = typer.Typer(rich_markup_mode=app.rich_markup_mode)
        if examples:
            alone.command(name, epilog=f"Examples: {examples}", rich_help_panel=panel)(command_or_group)
        else:
            alone.add_typer(command_or_group, name=name, rich_help_panel=panel)
        return typer.main.get_group(alone).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _Group(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": _Commands()})


app = typer.Typer(
    cls=_Group,
    help="Keep Elasticsearch documents equal to a SELECT in Postgres.",
    epilog="Exit codes: 0 success; 1 an error, drift or a problem; 2 a usage error; 3 `verify` is undecided.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # paragraphs flow as wide as the terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Part(StrEnum):
    """A part of the daemon that can run alone."""

    RELAY = "relay"
    WORKERS = "workers"


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"syncer {version('syncer-cdc')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    config: Annotated[Path | None, typer.Option(help="Config folder [default: SYNCER_CONFIG or config].")] = None,
    debug: Annotated[bool, flag("--debug", text="Show tracebacks of errors.")] = False,
    version: Annotated[  # noqa: ARG001 - it acts as soon as it is read
        bool, typer.Option("--version", callback=_print_version, is_eager=True, metavar="", help="Show the version.")
    ] = False,
) -> None:
    if not gc.isenabled():  # see syncer.__main__: by now, the command is loaded
        gc.freeze()
        gc.enable()
    if any("\ud800" <= character <= "\udfff" for argument in sys.argv for character in argument):
        raise UsageError("An argument is not valid UTF-8.")
    _Debug.is_on = debug
    if config is not None:
        os.environ[settings.CONFIG_VARIABLE] = str(config)


class _Debug:
    is_on = False


def main() -> None:
    """Entry point of the command ``syncer``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a document may hold half of a surrogate pair
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except Stopping:
        sys.exit(130)
    except Exception as error:
        explained = explain(error)
        if log.is_json() and not _Debug.is_on:
            shown = explained or SyncerError(repr(error))
            # A traceback helps with unexpected errors only.
            cause = None if explained else error
            structlog.get_logger().error("daemon.failed", error=shown.message, hint=shown.hint, exc_info=cause)
        elif explained is None or _Debug.is_on:
            raise
        else:
            render.show_error(explained)
        if isinstance(error, HangingError):
            os._exit(1)  # an ordinary exit waits for the threads that do not end
        sys.exit(1)


def migrate(
    *,
    anew: Annotated[bool, flag("--anew", text="Drop the schema and all triggers, and create it again.")] = False,
    yes: Yes = False,
) -> None:
    """Create or upgrade the syncer schema in Postgres.

    The role needs CREATE on the database. Tables of yours are not changed: `syncer apply` adds
    the triggers. No application waits for it: a lock that is in use is given up and requested
    again, for a minute. With --anew, it drops the schema and all triggers first, and so forgets
    definitions, jobs and progress: nothing is captured until `syncer apply --take-over '*'` has
    built new indices.
    """
    if anew:
        confirm("Drop the syncer schema with everything in it, and the triggers?", yes=yes)
    with postgres.connect(settings.load().postgres, name="migrate") as connection:
        applied = migrations.migrate(connection, anew=anew, has_other_daemons=daemons.has_others, waiting=say)
        postponed = migrations.postponed(connection)
    for name in applied:
        say(f"applied {name}")
    for name in postponed:
        say(f"{name} waits until no daemon of another version runs: then run `syncer migrate` again")
    if not applied and not postponed:
        say("The syncer schema is current.")


def run(
    *,
    only: Annotated[
        Part | None,
        typer.Option(
            help="Run only the relay, which publishes changes to Kafka, or only the workers, which write documents."
        ),
    ] = None,
) -> None:
    """Run the daemon: read changes from Postgres and write documents to Elasticsearch.

    If a server does not answer at the start, waits for it.
    SIGTERM or Ctrl-C stops it after the current batch; a second signal stops it at once.
    Nothing is lost: the next daemon repeats unacknowledged work.
    """
    from syncer import daemon  # noqa: PLC0415 - only this command needs it, and its packages are many

    log.configure(settings.LogSettings())
    configured = settings.load()
    log.configure(configured.log)
    if only is Part.RELAY and not configured.kafka.is_used:
        raise UsageError("Without Kafka there is no relay: remove --only relay, or set kafka.bootstrap_servers.")
    stop = Stop()
    _stop_on_signals(stop, seconds_max=daemon.STOP_SECONDS + _EXIT_SECONDS)
    daemon.run(configured, stop, relay=only is not Part.WORKERS, workers=only is not Part.RELAY)


def _stop_on_signals(stop: Stop, *, seconds_max: float) -> None:
    """Request a stop on the first signal; end the process on the second, and if it has not ended after a while."""
    faulthandler.enable()  # a crash in a library shows where
    numbers: list[int] = []

    def receive(number: int, _: object) -> None:
        numbers.append(number)
        if len(numbers) > 1:
            os._exit(128 + number)
        # Even if a library hangs and holds the interpreter's lock: then every thread's stack is the last output.
        faulthandler.dump_traceback_later(seconds_max, exit=True)
        # Not here: what was interrupted may hold the very lock that this needs.
        threading.Thread(target=stop.request).start()

    signal.signal(signal.SIGTERM, receive)
    signal.signal(signal.SIGINT, receive)


def demo(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Data models to show instead: see --list.")
    ] = None,
    *,
    as_list: Annotated[bool, flag("--list", text="List the data models and what each is for.")] = False,
    keep: Annotated[bool, flag("--keep", text="Leave everything running.")] = False,
    no_kafka: NoKafka = False,
    opensearch: OpenSearch = None,
) -> None:
    """Demonstrate syncer with a blog and a renamed author."""
    from syncer.demo import list_models, play  # noqa: PLC0415 - its packages are an extra

    if as_list:
        list_models(render.out)
    elif not play(render.out, models or [], keep=keep, with_kafka=not no_kafka, opensearch=opensearch):
        raise typer.Exit(1)
