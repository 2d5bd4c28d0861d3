"""The commands: the only place where the parts are put together.

Every command says what it did on standard output and everything else on standard error. Its exit code is 0 only
if what was asked for holds. An error is one sentence and a hint; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.markup import escape

from syncer import (
    apply as applying,
    compose,
    definition,
    index as elastic,
    job_commands,
    overview,
    postgres,
    schema,
    service,
    settings,
    store,
    telemetry,
    terminal,
    topic,
)
from syncer.errors import ConfigError, DefinitionError, DocumentError, IndexingError, SyncerError
from syncer.index import Index
from syncer.indices import Indices
from syncer.lifecycle import Stop, Stopping
from syncer.plan import caution, forecast, page
from syncer.policy import explain
from syncer.postgres import Connection
from syncer.refresh import refresh_all
from syncer.sandbox import ConsoleReporter, Sandbox
from syncer.settings import Settings
from syncer.store import Document
from syncer.verify import VerifyReport, verify as verify_document
from syncer.writer import Writer

app = typer.Typer(
    help="Keeps Elasticsearch documents equal to what one SELECT says about Postgres.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
sandbox_app = typer.Typer(
    help="Real Postgres, Kafka and Elasticsearch on this machine, to try things on.", no_args_is_help=True
)
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(job_commands.app, name="jobs")

out = terminal.console(sys.stdout)
err = terminal.console(sys.stderr)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Folder = Annotated[
    Path | None, typer.Option("--folder", help="Where the sandbox lives. Each folder is a sandbox of its own.")
]


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
        sys.exit(1)


# Setting up


@app.command()
def migrate() -> None:
    """Bring the syncer schema in Postgres up to date."""
    with postgres.connect(settings.load().postgres, name="migrate") as connection:
        applied = schema.migrate(connection)
    for name in applied:
        out.print(f"applied {name}")
    if not applied:
        out.print("The syncer schema is current.")


@app.command()
def plan(
    document: Annotated[str | None, typer.Argument(help="Which document; all of them if left out.")] = None,
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
    loaded = settings.load()
    telemetry.configure(loaded.log)
    with postgres.connect(loaded.postgres, name="plan") as connection:
        client = elastic.connect(loaded.elasticsearch)
        index = Index(client, bulk_bytes_max=loaded.worker.bulk_bytes_max)
        seen = forecast.read(connection, index, Indices(client), settings.config_folder(), only=document)
    if as_json:
        typer.echo(json.dumps(seen.as_json(), indent=2))
    else:
        page.show_forecast(out, seen)
    if seen.is_refused or (strict and seen.has_warnings):
        raise typer.Exit(1)


@app.command()
def apply(
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to go on asking for the lock of a table in use.")] = 60,
) -> None:
    """Put the definitions of the config folder in force: indices, triggers, and a first fill."""
    with _open("apply") as parts:
        decided = applying.plan(parts.connection, parts.indices, definition.load_all(settings.config_folder()))
        terminal.show_plan(out, decided)
        for step in decided.steps:
            if step.is_new_generation:
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
        to_fill = applying.carry_out(
            parts.connection, parts.indices, decided, tell=lambda line: out.print(escape(line)), timeout_seconds=timeout
        )
        _fill_all(parts, to_fill)


@app.command()
def backfill(document: Annotated[str, typer.Argument(help="Which document.")]) -> None:
    """Write every document again, and delete what the SELECT no longer returns. Safe beside live traffic."""
    with _open("backfill") as parts:
        chosen = _one_document(parts.connection, document)
        _require_going(chosen)
        _fill(parts, chosen)


# Running


@app.command()
def run(*, only: Annotated[str | None, typer.Option(help="relay or workers: run only that part.")] = None) -> None:
    """Run the daemon until SIGTERM or Ctrl-C; the batch in hand is finished first."""
    if only not in (None, "relay", "workers"):
        raise ConfigError(f"--only takes relay or workers, not {only}", hint="Leave it out to run both.")
    loaded = settings.load()
    telemetry.configure(loaded.log)
    with postgres.connect(loaded.postgres, name="run") as connection:
        schema.require_current(connection)
    topic.require_topic(loaded.kafka)
    stages = service.stages(loaded, relay=only != "workers", workers=only != "relay")
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.request())
    service.run(stages, stop)


@app.command()
def status(*, as_json: AsJson = False) -> None:
    """How far behind, who leads, what each document holds. Exit code 0 only if all is well."""
    with _open("status") as parts:
        seen = overview.read(parts.connection, parts.index, parts.settings.kafka)
    if as_json:
        typer.echo(json.dumps(seen.as_json(), indent=2))
    else:
        terminal.show_overview(out, seen)
    if not seen.is_well:
        raise typer.Exit(1)


@app.command()
def verify(
    document: Annotated[str | None, typer.Argument(help="Which document; all of them if left out.")] = None,
    *,
    settle: Annotated[float, typer.Option(help="Seconds that a difference may last before it is drift.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Compare every document with its SELECT, beside live traffic. Exit code 1 if anything differs."""
    with _open("verify") as parts:
        chosen = (
            [_one_document(parts.connection, document)] if document else list(store.served(parts.connection).values())
        )
        if not chosen:
            raise DefinitionError("No document is in force", hint="Run: syncer apply")
        reports = [_verify(parts, one, settle) for one in chosen]
        advice = {one.name: _advice(parts.connection, one) for one in chosen}
    if as_json:
        typer.echo(json.dumps([{**dataclasses.asdict(one), "holds": one.holds} for one in reports], indent=2))
    else:
        for report in reports:
            terminal.show_verify(out, report, advice=advice[report.document])
    if not all(report.holds for report in reports):
        raise typer.Exit(1)


@app.command()
def demo(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Show these models of the guide instead; --list says which there are."),
    ] = None,
    *,
    as_list: Annotated[bool, typer.Option("--list", help="Say what each model is for, and show none.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running, to play with.")] = False,
    posts: Annotated[
        int | None, typer.Option(min=100, help="How many posts the famous author has, if not 5000.")
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


# The sandbox


@sandbox_app.command("start")
def sandbox_start(*, folder: Folder = None, as_json: AsJson = False) -> None:
    """Start the servers, and print the three settings: eval "$(syncer sandbox start)"."""
    environment = Sandbox(folder, report=ConsoleReporter(err)).start().environment()
    if as_json:
        typer.echo(json.dumps(environment))
    else:
        for name, value in environment.items():
            typer.echo(f"export {name}={value}")


@sandbox_app.command("stop")
def sandbox_stop(*, folder: Folder = None) -> None:
    """Stop the servers. Their data stays."""
    Sandbox(folder, report=ConsoleReporter(err)).stop()


@sandbox_app.command("status")
def sandbox_status(*, folder: Folder = None, as_json: AsJson = False) -> None:
    """Which servers run, and where. Exit code 0 only if all do."""
    seen = Sandbox(folder).status()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(seen), indent=2, default=str))
    else:
        terminal.show_sandbox(out, seen)
    if seen.endpoints is None:
        raise typer.Exit(1)


# What the commands share


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    settings: Settings
    connection: Connection
    index: Index
    indices: Indices
    name: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def connect(self) -> Connection:
        return postgres.connect(self.settings.postgres, name=self.name)


def _open(name: str) -> _Parts:
    loaded = settings.load()
    telemetry.configure(loaded.log)
    connection = postgres.connect(loaded.postgres, name=name)
    schema.require_current(connection)
    client = elastic.connect(loaded.elasticsearch)
    index = Index(client, bulk_bytes_max=loaded.worker.bulk_bytes_max)
    return _Parts(settings=loaded, connection=connection, index=index, indices=Indices(client), name=name)


def _one_document(connection: Connection, name: str) -> Document:
    documents = store.served(connection)
    if name not in documents:
        known = ", ".join(documents) or "none; run: syncer apply"
        raise DefinitionError(f"No document {name} is in force", hint=f"In force: {known}")
    return documents[name]


def _fill_all(parts: _Parts, documents: Iterable[Document]) -> None:
    """Fill each; one that fails keeps none of the others waiting.

    Raises:
        SyncerError: The last that failed; those before it have been shown.
    """
    failed: list[SyncerError] = []
    for document in documents:
        try:
            _fill(parts, document)
        except SyncerError as error:
            failed.append(error)
    if failed:
        *others, last = failed
        for one in others:
            terminal.show_error(err, one)
        raise last


def _fill(parts: _Parts, document: Document) -> None:
    writer = Writer(connect=parts.connect, index=parts.index, pause=Stop().pause, name=parts.name)
    expected = compose.count(parts.connection, document)
    with terminal.progress(err, f"writing {document.name}", expected) as advance, parts.connect() as reading:
        report = refresh_all(
            reading,
            document,
            index=parts.index,
            writer=writer,
            page=parts.settings.worker.batch_documents_max,
            progress=lambda total: advance(total.documents),
        )
    writer.close()
    if not store.mark_filled(parts.connection, document.name, document.generation):
        _require_going(_one_document(parts.connection, document.name))
    terminal.show_write(out, document.name, report)
    worst = store.worst_dead_letter(parts.connection, document.index_name) if report.parked else None
    if worst is not None:
        raise IndexingError(
            f"{report.parked:,} documents of {document.name} could not be written, such as {worst[0]}: {worst[1]}",
            hint="The table syncer.dead_letter has what was said of each. Mend the data, the SELECT or index.json, "
            f"then: syncer apply, or syncer backfill {document.name}",
        )


def _require_going(document: Document) -> None:
    if document.halted is not None:
        what, _, hint = document.halted.partition("\n")
        raise DocumentError(
            f"{document.name} is halted: {what}", hint=hint, document=document.name, generation=document.generation
        )


def _advice(connection: Connection, document: Document) -> str:
    """What to do about documents that differ."""
    if not document.is_filled:
        return f"{document.name} has not been filled yet. Run: syncer apply"
    worst = store.worst_dead_letter(connection, document.index_name)
    if worst is not None:
        return f"Some are parked, such as {worst[0]}: {worst[1]}\nMend the data, select.sql or index.json: syncer apply"
    return f"To write them all again: syncer backfill {document.name}"


def _verify(parts: _Parts, document: Document, settle: float) -> VerifyReport:
    if document.halted is not None:
        return VerifyReport(document=document.name, halted=document.halted)
    try:
        expected = compose.count(parts.connection, document)
        with terminal.progress(err, f"comparing {document.name}", expected) as advance:
            return verify_document(parts.connect, document, index=parts.index, settle_seconds=settle, progress=advance)
    except DocumentError as error:
        return VerifyReport(document=document.name, halted=f"{error.message}\n{error.hint}")
