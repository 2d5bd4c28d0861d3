"""The commands: the only place where the parts are put together.

Every command says what it did on standard output and everything else on standard error. Its exit code is 0 only
if what was asked for holds. An error is one sentence and a hint; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from importlib.metadata import version
from typing import Annotated

import typer
from rich.markup import escape

from syncer import (
    apply as applying,
    backfill_commands,
    completion,
    definition,
    grants_commands,
    index as elastic,
    init_commands,
    job_commands,
    letter_commands,
    lock_commands,
    loss,
    manual,
    postgres,
    replica,
    sandbox_commands,
    schema,
    service,
    settings,
    status_commands,
    steps,
    telemetry,
    terminal,
    topic,
    traces,
    verify_commands,
    wait_commands,
)
from syncer.entered import number, whole
from syncer.errors import ConfigError, HangingError
from syncer.filling import Filling
from syncer.grants import Duty
from syncer.index import Index
from syncer.indices import Indices
from syncer.lifecycle import Stop, Stopping
from syncer.parts import open_parts
from syncer.policy import explain

app = typer.Typer(
    help="Keeps Elasticsearch documents equal to what one SELECT says about Postgres.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = terminal.console(sys.stdout)
err = terminal.console(sys.stderr)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"syncer {version('syncer')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[  # noqa: ARG001 - it acts as soon as it is read
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    _Debug.is_on = debug


class _Debug:
    is_on = False


def main() -> None:
    """Entry point of the command ``syncer``."""
    try:
        app()
    except (KeyboardInterrupt, Stopping):
        sys.exit(130)
    except Exception as error:
        said = explain(error)
        if said is None or _Debug.is_on:
            raise
        terminal.show_error(err, said)
        if isinstance(error, HangingError):
            os._exit(1)  # an ordinary exit waits for the threads that do not end
        sys.exit(1)


# Setting up


def migrate() -> None:
    """Bring the syncer schema in Postgres up to date."""
    with postgres.connect(settings.load().postgres, name="migrate") as connection:
        applied = schema.migrate(connection)
    for name in applied:
        out.print(f"applied {name}")
    if not applied:
        out.print("The syncer schema is current.")


def plan(
    document: completion.MaybeDocument = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings and missing indexes too.")] = False,
    as_json: AsJson = False,
) -> None:
    """What apply would do, tried out: nothing in Postgres or in your indices is changed, and Kafka is not asked.

    Says of each document whether its index is made, changed in place, replaced by a new one or refused,
    how long filling it takes, which tables it reads and how their changes find it,
    which indexes are missing, which fields do not fit their mapping; and shows one.
    Exit code 1 if anything is refused.

    --json has is_refused, has_warnings, is_migrated, documents, missing_indexes,
    released and forgotten; a document has name, index, refusals, halted, outcome
    (new, in_place, reindex, triggers, fill or nothing), reason (why it needs a new
    index), documents, fill_seconds, sampled, compose, tables, warnings and sample.
    """
    from syncer.plan import forecast, page  # noqa: PLC0415 - it parses SQL, which takes long to load

    loaded = settings.load()
    telemetry.configure(loaded.log, is_command=True)
    with postgres.connect(loaded.postgres, name="plan") as connection:
        client = elastic.connect(loaded.elasticsearch)
        index = Index(client, bulk_bytes_max=loaded.worker.bulk_bytes_max)
        with terminal.doing(err, "trying it out, with the rows of today", in_pipes=False):
            seen = forecast.read(connection, index, Indices(client), settings.config_folder(), only=document)
    if as_json:
        typer.echo(json.dumps(seen.as_json(), indent=2))
    else:
        page.show_forecast(out, seen)
    if seen.is_refused or (strict and seen.has_warnings):
        raise typer.Exit(1)


def apply(
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="NUMBER", parser=number(least=0), help="Seconds to go on asking for the lock of a table in use."
        ),
    ] = 60,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DOCUMENT",
            help="Put a document that has no folder any more out of force, and drop its index.",
        ),
    ] = None,
) -> None:
    """Put the definitions of the config folder in force: indices, triggers, and a first fill.

    A document whose folder is gone is left as it is, unless --remove names it: then
    searches find it no more, its index is dropped, and so are its jobs, its dead
    letters, and the triggers of tables that only it reads.
    """
    from syncer.plan import caution, page  # noqa: PLC0415 - as above

    with open_parts("apply") as parts:
        decided = steps.plan(
            parts.connection, parts.indices, definition.load_all(settings.config_folder()), remove=remove or ()
        )
        terminal.show_plan(out, decided)
        for step in decided.steps:
            if step.is_new_generation:
                looking = f"looking for values of {step.document.name} that do not fit their mapping"
                with terminal.doing(err, looking, in_pipes=False):
                    warnings = caution.warnings(parts.connection, step.document)
                page.show_warnings(out, step.document.name, warnings)
        if decided.is_empty and topic.exists(parts.settings.kafka):
            out.print("Nothing to do.")
            return
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError(
                    "apply asks before it changes anything, and nobody is there to answer", hint="Add --yes."
                )
            typer.confirm("Apply?", abort=True)
        if topic.ensure_topic(parts.settings.kafka):
            out.print(f"topic {parts.settings.kafka.topic} created")
        fills = applying.carry_out(parts.connection, parts.indices, decided, tell=_tell, timeout_seconds=timeout)
        Filling(parts, out=out, err=err).fill_all(fills)


def _tell(line: str) -> None:
    out.print(escape(line))


# Running


def run(*, only: completion.Part = None) -> None:
    """Run the daemon until SIGTERM or Ctrl-C; the batch in hand is finished first.

    A second signal ends it at once: nothing is lost, the next daemon does again what was in hand.
    """
    _require_part(only)
    from syncer.web import serve  # noqa: PLC0415 - what serves HTTP is needed by nobody else

    loaded = settings.load()
    telemetry.configure(loaded.log)
    with postgres.connect(loaded.postgres, name="run") as connection:
        schema.require_current(connection)
        replica.require(loaded.postgres, connection)
        loss.require_topic(connection, loaded.kafka)
    stages = service.stages(loaded, relay=only != "workers", workers=only != "relay")
    stop = Stop()
    serve(loaded, stages, stop)
    _stop_on_signals(stop)
    traces.configure(loaded.traces)
    try:
        service.run(stages, stop)
    finally:
        traces.close()


def _require_part(only: str | None) -> None:
    if only not in (None, "relay", "workers"):
        raise ConfigError(f"--only takes relay or workers, not {only}", hint="Leave it out for both.")


def _stop_on_signals(stop: Stop) -> None:
    numbers: list[int] = []

    def heed(number: int, _: object) -> None:
        numbers.append(number)
        if len(numbers) > 1:
            os._exit(128 + number)
        # Not here: what was interrupted may hold the very lock that this needs.
        threading.Thread(target=stop.request).start()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, heed)


def doctor(
    *,
    show_all: Annotated[bool, typer.Option("--all", help="Show what is well too, each check in a line.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 for what is to be considered, or cannot be seen, too.")
    ] = False,
    only: completion.Part = None,
    as_json: AsJson = False,
) -> None:
    """Every setting, privilege and condition that a promise rests on, looked at, with the mend.

    Changes nothing, takes a few seconds, and goes on with the others if a server is
    away. What it cannot look at, for want of a privilege, it says. Exit code 0 only
    if nothing is wrong.

    --json has is_well, wrong, consider, unseen, well, servers, seconds and findings; a
    finding has id, severity, claim, found, why, promises and mend, which has how (sql,
    shell or advice), text and note.
    """
    from syncer.doctor import examination, page, patient  # noqa: PLC0415 - it needs what few commands need

    _require_part(only)
    duties = {"relay": frozenset({Duty.RELAY}), "workers": frozenset({Duty.WORKER})}
    loaded = settings.load()
    telemetry.configure(loaded.log, is_command=True)
    of_role = duties[only] if only else patient.OF_DAEMON
    with terminal.asking():
        seen = examination.examine(loaded, settings.config_folder(), duties=of_role)
    if as_json:
        typer.echo(json.dumps(seen.as_json(), indent=2))
    else:
        page.show(out, seen, all_checks=show_all)
    if not seen.is_well(strict=strict):
        raise typer.Exit(1)


def demo(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Show these models of the guide instead; --list says which there are."),
    ] = None,
    *,
    as_list: Annotated[bool, typer.Option("--list", help="Say what each model is for, and show none.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running, to play with.")] = False,
    posts: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", parser=whole(least=100), help="How many posts the famous author has, if not 5000."
        ),
    ] = None,
) -> None:
    """See it work: a blog, its author's rename, and a question answered before and after."""
    from syncer.demo import list_models, play, play_models  # noqa: PLC0415 - its packages are an extra

    if as_list:
        list_models(out)
        return
    if models and posts is not None:
        raise ConfigError("--posts is for the demo of the blog: a model has the guide's few rows", hint="Leave it out.")
    holds = play_models(out, models, keep=keep) if models else play(out, keep=keep, posts=posts or 5000)
    if not holds:
        raise typer.Exit(1)


# In the order in which a newcomer needs them.
for command in (
    demo,
    init_commands.init,
    migrate,
    plan,
    apply,
    run,
    status_commands.status,
    status_commands.top,
    verify_commands.verify,
    verify_commands.explain,
    wait_commands.wait,
    backfill_commands.backfill,
    doctor,
    grants_commands.grants,
):
    app.command()(command)
app.add_typer(job_commands.app, name="jobs")
app.add_typer(letter_commands.app, name="dead-letters")
app.add_typer(lock_commands.app, name="locks")
app.add_typer(sandbox_commands.app, name="sandbox")
manual.complete(app)
