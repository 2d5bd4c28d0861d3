"""The commands ``syncer plan`` and ``syncer apply``: preview the config folder's definitions, and activate them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from syncer.apply import activate, plan as planning
from syncer.apply.plan import Plan
from syncer.base import log, postgres, settings
from syncer.cli import parameters, render
from syncer.cli.context import Parts, open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.parameters import UsageError, finite
from syncer.documents import definition
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices
from syncer.kafka import topic
from syncer.recovery import lost_records

out = render.console(sys.stdout)
err = render.console(sys.stderr)

Remove = Annotated[
    list[str] | None,
    typer.Option(metavar="DOCUMENT", help="Remove a document whose folder was deleted, and drop its index."),
]
_TESTING = "testing the definitions on a sample"


def plan(
    document: parameters.MaybeDocument = None,
    *,
    verbose: parameters.Verbose = False,
    remove: Remove = None,
    strict: parameters.Strict = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Preview what apply would do, without changing anything.

    Shows for each document whether its index would be created, changed in place or rebuilt,
    and how long the initial load takes. Writes a sample of documents to a scratch index to
    find rejected or altered values. Lists missing indexes. The first line is the verdict.
    --verbose adds tables, affected-document queries and a sample document.
    Exit code 1 if a definition is invalid or a sampled document is rejected.
    """
    from syncer.apply.preview import forecast  # noqa: PLC0415 - it parses SQL, which takes long to load
    from syncer.cli import plan_output  # noqa: PLC0415 - as above

    _require_one(document, remove)
    loaded = settings.load()
    log.configure(loaded.log, is_command=True)
    with postgres.connect(loaded.postgres, name="plan") as connection:
        client = elastic.connect(loaded.elasticsearch)
        index = Index(client, bulk_bytes_max=loaded.worker.bulk_bytes_max)
        with render.doing(err, _TESTING, in_pipes=False):
            seen = forecast.read(
                connection, index, Indices(client), settings.config_folder(), only=document, remove=remove or ()
            )
    if as_json:
        render.print_json(seen.as_json())
    else:
        plan_output.show_forecast(out, seen, verbose=verbose)
    if seen.has_errors or (strict and seen.has_warnings):
        raise typer.Exit(1)


def apply(
    document: parameters.MaybeDocument = None,
    *,
    yes: parameters.Yes = False,
    verbose: parameters.Verbose = False,
    lock_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, callback=finite, help="Time to keep trying to lock a table in use."),
    ] = 60,
    remove: Remove = None,
    despite_dead_lettered: parameters.DespiteDeadLettered = False,
) -> None:
    """Activate the definitions of the config folder.

    Shows what changes, as `syncer plan` does, and asks for confirmation. Creates indices,
    triggers and the topic, and runs initial loads. If there is an error in any document that
    changes, nothing is changed. With --despite-dead-lettered, documents that cannot be written
    become dead letters instead. A document whose folder was deleted stays active unless you
    name it with --remove. This drops its index, its jobs, its dead letters, and the triggers
    of tables that no other document reads.
    """
    from syncer.apply.preview import forecast  # noqa: PLC0415 - it parses SQL, which takes long to load
    from syncer.cli import plan_output  # noqa: PLC0415 - as above

    _require_one(document, remove)
    with open_parts("apply") as parts:
        decided = _decided(parts, document, remove or ())
        with render.doing(err, _TESTING, in_pipes=False):
            seen = forecast.of_plan(parts.connection, parts.index, parts.indices, settings.config_folder(), decided)
        forecast.require_applicable(seen, despite_dead_lettered=despite_dead_lettered)
        plan_output.show_forecast(out, seen, verbose=verbose)
        if decided.is_empty and topic.exists(parts.settings.kafka):
            return
        parameters.confirm("Apply?", yes=yes)
        if topic.ensure_topic(parts.settings.kafka):
            render.say(out, f"topic {parts.settings.kafka.topic} created")
        initial_loads = activate.carry_out(
            parts.connection,
            parts.indices,
            decided,
            tell=lambda line: render.say(out, line),
            timeout_seconds=lock_timeout,
        )
        LoadProgress(parts, out=out, err=err, despite_dead_lettered=despite_dead_lettered).follow_all(initial_loads)


def _require_one(document: str | None, remove: Sequence[str] | None) -> None:
    if document is not None and remove:
        raise UsageError("DOCUMENT and --remove cannot be combined. Run the command once for each.")


def _decided(parts: Parts, document: str | None, remove: Sequence[str]) -> Plan:
    """Compare the config folder, or one document of it, with what is active."""
    lost_records.require_own_topic(parts.connection, parts.settings.kafka, parts.index)
    folder = settings.config_folder()
    if document is None:
        wanted = definition.load_all(folder, may_be_none=bool(remove))
    else:
        wanted = [definition.load_one(folder, document)]
    return planning.plan(parts.connection, parts.indices, wanted, remove=remove)
