"""The commands ``syncer plan`` and ``syncer apply``: preview the config folder's definitions, and activate them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from syncer.apply import activate
from syncer.base import log, postgres, settings
from syncer.cli import parameters, render
from syncer.cli.context import open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.parameters import UsageError, finite
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

    Shows for each document whether its index would be created, changed in place or rebuilt.
    Writes a sample of documents to a scratch index to find what Elasticsearch rejects. Shows
    how many documents one changed row of each table leads to, and lists missing indexes. The
    first line is the verdict. --verbose adds the queries from changed rows to documents, and
    a document.
    Exit code 1 if a definition is invalid or a sampled document is rejected.
    """
    from syncer.apply import preview  # noqa: PLC0415 - it parses SQL, which takes long to load
    from syncer.cli import plan_output  # noqa: PLC0415 - as above

    _require_one(document, remove)
    loaded = settings.load()
    log.configure(loaded.log, is_command=True)
    with postgres.connect(loaded.postgres, name="plan") as connection:
        client = elastic.connect(loaded.elasticsearch, is_patient=True)
        index = Index(client, bulk_bytes_max=loaded.worker.bulk_bytes_max)
        with render.doing(err, _TESTING, in_pipes=False):
            _, found = preview.read(
                connection, index, Indices(client), settings.config_folder(), only=document, remove=remove or ()
            )
    if as_json:
        render.print_json(found.as_json())
    else:
        plan_output.show_preview(out, found, verbose=verbose)
    if found.has_errors or (strict and found.has_warnings):
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
    from syncer.apply import preview  # noqa: PLC0415 - it parses SQL, which takes long to load
    from syncer.cli import plan_output  # noqa: PLC0415 - as above

    _require_one(document, remove)
    with open_parts("apply") as parts:
        kafka = parts.settings.kafka
        if kafka.is_used:
            lost_records.require_original(parts.connection, kafka, parts.index)
        with render.doing(err, _TESTING, in_pipes=False):
            decided, found = preview.read(
                parts.connection,
                parts.index,
                parts.indices,
                settings.config_folder(),
                only=document,
                remove=remove or (),
                only_changed=True,
            )
        found.require_applicable(despite_dead_lettered=despite_dead_lettered)
        plan_output.show_preview(out, found, verbose=verbose)
        if decided.is_empty and (not kafka.is_used or topic.exists(kafka)):
            return
        parameters.confirm("Apply?", yes=yes)
        if kafka.is_used and topic.ensure_topic(kafka):
            render.say(out, f"topic {kafka.topic} created")
        initial_loads = activate.carry_out(
            parts.connection,
            parts.indices,
            decided,
            report=lambda line: render.say(out, line),
            timeout_seconds=lock_timeout,
        )
        LoadProgress(parts, out=out, err=err, despite_dead_lettered=despite_dead_lettered).follow_all(initial_loads)


def _require_one(document: str | None, remove: Sequence[str] | None) -> None:
    if document is not None and remove:
        raise UsageError("DOCUMENT and --remove cannot be combined. Run the command once for each.")
