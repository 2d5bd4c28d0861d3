"""The commands: the only place where the parts are put together.

Every command says what it did on standard output and everything else on standard error. Its exit code is 0 only
if what was asked for holds. An error is one sentence and a hint; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Annotated, BinaryIO

import typer
from rich.markup import escape

from syncer import (
    apply as applying,
    completion,
    definition,
    findings,
    grants_commands,
    halting,
    index as elastic,
    init_commands,
    job_commands,
    jobs,
    letter_commands,
    listing,
    lock_commands,
    loss,
    manual,
    postgres,
    rebuild as rebuilding,
    replica,
    sandbox_commands,
    schema,
    service,
    settings,
    status_commands,
    store,
    telemetry,
    terminal,
    topic,
    traces,
    wait_commands,
)
from syncer.comparing import compared
from syncer.errors import ConfigError, DefinitionError, HangingError
from syncer.explain import explanation, page as explain_page
from syncer.explain.events import Limits
from syncer.filling import Filling
from syncer.grants import Duty
from syncer.index import Index
from syncer.indices import Indices
from syncer.job import Job, JobKind, unfinished
from syncer.lifecycle import Stop, Stopping
from syncer.model import ID_BYTES_MAX, Role
from syncer.parts import Parts, open_parts
from syncer.policy import explain
from syncer.store import Document
from syncer.verify import SETTLE_SECONDS

app = typer.Typer(
    help="Keeps Elasticsearch documents equal to what one SELECT says about Postgres.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(sandbox_commands.app, name="sandbox")
app.add_typer(job_commands.app, name="jobs")
app.add_typer(letter_commands.app, name="dead-letters")
app.add_typer(lock_commands.app, name="locks")
app.command()(status_commands.status)
app.command()(status_commands.top)
app.command()(wait_commands.wait)
app.command("init")(init_commands.init)
app.command("grants")(grants_commands.print_grants)

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
    from syncer.plan import caution, page  # noqa: PLC0415 - as above

    with open_parts("apply") as parts:
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
        fills = applying.carry_out(parts.connection, parts.indices, decided, tell=_tell, timeout_seconds=timeout)
        Filling(parts, out=out, err=err).fill_all(fills)


@app.command()
def backfill(
    document: completion.Document,
    *,
    rate: Annotated[float | None, typer.Option(min=0.1, help="At most so many documents per second.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Only those whose row in the root table meets this SQL condition.")
    ] = None,
    ids: Annotated[
        typer.FileBinaryRead | None,
        typer.Option(help="Only these ids, one on each line of a file; - for standard input."),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Write a new index; searches find it once it is complete.")
    ] = False,
    despite_parked: Annotated[
        bool, typer.Option("--despite-parked", help="With --rebuild: also if documents could not be written.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give up the new index that is being built.")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="Search the index before the rebuild again.")] = False,
    drop_old: Annotated[bool, typer.Option("--drop-old", help="Drop the index that is kept for a rollback.")] = False,
) -> None:
    """Write every document again, and delete what the SELECT no longer returns. Safe beside live traffic.

    The daemons that run do it together; if none does, it is done here. It can be
    interrupted at any point: the same command takes it up where it was.

    With --rebuild the documents go to a new index, made from the index.json that was
    applied. Searches go on with the old one until the new one is complete, verified
    and takes its place at once; the old one is kept up to date for --rollback,
    until --drop-old.
    """
    steps = {"--rebuild": rebuild, "--abandon": abandon, "--rollback": rollback, "--drop-old": drop_old}
    parts_of = {"--where": where is not None, "--ids": ids is not None}
    _require_one({**steps, **parts_of})
    if rate is not None and not math.isfinite(rate):
        raise ConfigError(
            f"--rate takes a number of documents per second, not {rate}", hint="Leave it out for no limit."
        )
    _require_with("--despite-parked", wanted=despite_parked, among={"--rebuild": rebuild})
    _require_with(
        "--rate", wanted=rate is not None, among={"a backfill or --rebuild": rebuild or not any(steps.values())}
    )
    with open_parts("backfill") as parts:
        chosen = parts.document(document)
        filling = Filling(parts, out=out, err=err, despite_parked=despite_parked)
        if abandon:
            dropped = rebuilding.abandon(parts.connection, parts.indices, document)
            out.print(f"{dropped.index_name} is given up; {chosen.index} is searched in {chosen.index_name} as before")
        elif rollback:
            filling.roll_back(chosen)
        elif drop_old:
            dropped = rebuilding.drop_standby(parts.connection, parts.indices, document)
            out.print(f"{dropped.index_name} is dropped")
        elif rebuild:
            fill = rebuilding.begin(parts.connection, parts.indices, document, tell=_tell)
            if fill.job is not None and rate is not None:
                jobs.set_rate(parts.connection, fill.job, rate)
            filling.fill(fill)
        else:
            halting.require_going(chosen)
            filling.follow(chosen, _job(parts, chosen, where=where, ids=ids, rate=rate).id)


def _job(parts: Parts, document: Document, *, where: str | None, ids: BinaryIO | None, rate: float | None) -> Job:
    """A job for what was asked; one that was interrupted is taken up again."""
    if ids is None:
        kind = JobKind.BACKFILL if where is None else JobKind.PART
        job = jobs.create(parts.connection, document, kind, where=where, rate=rate, resumes=True)
    else:
        page = parts.settings.worker.batch_documents_max
        job = listing.create_listed(parts.connection, document, JobKind.PART, _ids(ids), page=page, rate=rate)
    if job is None:
        raise DefinitionError(
            f"{document.index_name} is no longer in force", hint="Somebody has changed it. Try again."
        )
    return job


def _ids(lines: BinaryIO) -> Iterator[str]:
    """The ids on the lines of a file, one on each; empty lines are left out.

    Raises:
        ConfigError: A line cannot be an id.
    """
    for number, line in enumerate(lines, start=1):
        try:
            id_ = line.decode().strip()
        except UnicodeDecodeError as error:
            raise ConfigError(f"Line {number} of --ids is not UTF-8", hint="Is it the right file?") from error
        if "\0" in id_ or len(id_.encode()) > ID_BYTES_MAX:
            raise ConfigError(
                f"Line {number} of --ids is no id: an id has 1 to {ID_BYTES_MAX} bytes, and none is zero",
                hint="Is it the right file? It has one id on each line. Nothing was written.",
            )
        if id_:
            yield id_


def _is_kept(document: Document) -> bool:
    """Whether an index is to equal its SELECT: one that is being built is not to yet; one that halted is given up."""
    return document.role is Role.SERVING or (document.is_filled and document.halted is None)


def _require_one(options: Mapping[str, bool]) -> None:
    given = [name for name, is_given in options.items() if is_given]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} cannot be had together", hint="Run one after the other.")


def _require_with(option: str, *, wanted: bool, among: Mapping[str, bool]) -> None:
    if wanted and not any(among.values()):
        raise ConfigError(f"{option} means something only with {' or '.join(among)}", hint="Leave it out.")


def _tell(line: str) -> None:
    out.print(escape(line))


# Running


@app.command()
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

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heed)


@app.command()
def verify(
    document: completion.MaybeDocument = None,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Write again what differs, and compare it again.")] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Compare only so many, chosen at random on either side.")
    ] = None,
    settle: Annotated[
        float, typer.Option(help="Seconds that a difference may last before it is drift.")
    ] = SETTLE_SECONDS,
    values: Annotated[bool, typer.Option("--values", help="Show the values that differ; they may be secrets.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare every document with its SELECT, beside live traffic. Exit code 1 if anything differs.

    Says of each document that differs which fields do, since which version, and why if
    that is known: it is parked, not filled yet, or somebody else wrote it.

    --json is a list with document, index_name, documents, drifts, repaired, moving, owed,
    owed_by, is_complete, sampled, halted, seconds, comparing_seconds, documents_per_second and
    holds; a drift has document, index_name, id, kind (missing, extra, different or
    misplaced), fields, differences (path, how, expected, held), version, routing,
    cause (parked, foreign, foreign_ahead, foreign_delete, lost, unfilled), error,
    drawn_after and drawn_before.
    """
    with open_parts("verify") as parts:
        if document is not None:
            parts.document(document)
        chosen = [one for one in store.documents(parts.connection) if document in (None, one.name) and _is_kept(one)]
        if not chosen:
            raise DefinitionError("No document is in force", hint="Run: syncer apply")
        reports = [
            compared(parts, one, err=err, settle_seconds=settle, sample=sample, values=values, repair=repair)
            for one in chosen
        ]
        owed = unfinished(parts.connection)
    if as_json:
        typer.echo(json.dumps([one.as_json() for one in reports], indent=2))
    else:
        for report in reports:
            findings.show_verify(out, report, owed)
    if not all(report.holds for report in reports):
        raise typer.Exit(1)


@app.command("explain")
def explain_document(
    document: completion.Document,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Which of its instances: its _id.")],
    *,
    values: Annotated[bool, typer.Option("--values", help="Show what fields hold, not only their names.")] = False,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="How long to look into the outbox and the topic, at most.")
    ] = 5,
    as_json: AsJson = False,
) -> None:
    """Why is this document as it is? Both sides, its versions, its changes, and what a refresh would do.

    Shows whether it equals its SELECT; what Elasticsearch holds, with its version
    and when that was drawn; the changes that touch it, in the outbox, in the topic,
    and the last that are done; why it is parked or halted; and what would be written
    now. Changes nothing. Exit code 0 only if it equals its SELECT.

    --json has document, id, at, is_equal, indices, coming, done, events, searched,
    lost and kafka; each of indices has verdict, says, hint, postgres, elasticsearch,
    refresh and dead_letter.
    """
    with open_parts("explain") as parts:
        parts.document(document)
        chosen = [one for one in store.documents(parts.connection) if one.name == document]
        limits = Limits(seconds=seconds)
        seen = explanation.read(parts.connection, parts.index, parts.settings.kafka, chosen, id_, limits=limits)
    if as_json:
        typer.echo(json.dumps(seen.as_json(values=values), indent=2, default=str, ensure_ascii=False))
    else:
        explain_page.show(out, seen, values=values)
    if not seen.is_equal:
        raise typer.Exit(1)


@app.command()
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
    seen = examination.examine(loaded, settings.config_folder(), duties=of_role)
    if as_json:
        typer.echo(json.dumps(seen.as_json(), indent=2))
    else:
        page.show(out, seen, all_checks=show_all)
    if not seen.is_well(strict=strict):
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


manual.complete(app)
