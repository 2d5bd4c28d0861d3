"""The commands ``syncer dead-letters …``: what could not be written or read, why, and what becomes of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from syncer import completion, dead_letters, letter_page, listing, store, terminal, trying, unreadable
from syncer.dead_letters import Selection
from syncer.entered import whole
from syncer.errors import ConfigError
from syncer.filling import Filling
from syncer.job import JobKind, find
from syncer.model import Change
from syncer.parts import Parts, open_parts
from syncer.producer import ChangeProducer
from syncer.store import Document
from syncer.unreadable import Kept
from syncer.wording import amount

_SHOWN_MAX = 10_000
_NUMBER_MAX = 2**63 - 1
_RECORDS_AT_ONCE = 500
_MISSING_SHOWN = 5

app = typer.Typer(help="What could not be written or read: which documents, why, and what to do.", no_args_is_help=True)

Name = completion.MaybeDocument
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Which of its instances; all if left out.")]
OfKind = Annotated[str | None, typer.Option("--kind", help="Only this kind of error, as `list` shows it.")]
OfField = Annotated[str | None, typer.Option("--field", help="Only those with this field at fault.")]
All = Annotated[bool, typer.Option("--all", help="Every dead letter of the document, or of all documents.")]
Records = Annotated[bool, typer.Option("--records", help="All records of the topic that could not be read, instead.")]
OneRecord = Annotated[
    list[int] | None,
    typer.Option(
        "--record",
        metavar="NUMBER",
        parser=whole(least=1, most=_NUMBER_MAX),
        help="This record of the topic; can be given several times.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


@app.command("list")
def list_(
    document: Name = None,
    *,
    kind: OfKind = None,
    field: OfField = None,
    limit: Annotated[
        int,
        typer.Option(metavar="NUMBER", parser=whole(least=0, most=_SHOWN_MAX), help="How many to show one by one."),
    ] = 20,
    offset: Annotated[
        int,
        typer.Option(metavar="NUMBER", parser=whole(least=0, most=_NUMBER_MAX), help="How many of those to leave out."),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Documents that could not be written, by kind and then one by one; and records that could not be read.

    A kind is an error, the field that is at fault, and the type of its value.

    --json has letters (how many there are), kinds, shown, topics and records; a kind has
    document, index_name, kind, field, value_type, letters, first_at, last_at and examples;
    one of shown has document, index_name, id, version, kind, error, field, value_type,
    is_id_cut and parked_at; a topic has topic, kept, only_counted and last_at; a record has
    id, topic, partition, offset, key, value (both in base64), value_bytes, error and
    received_at.
    """
    with open_parts("dead-letters") as parts:
        selection = _selection(parts, document, (), kind, field)
        kinds = dead_letters.kinds(parts.connection, selection)
        letters = dead_letters.page(parts.connection, selection, limit=limit, offset=offset)
        is_about_all = selection == Selection()
        topics = unreadable.topics(parts.connection) if is_about_all else []
        records = unreadable.page(parts.connection, limit=limit) if is_about_all else []
    if as_json:
        said = {
            "letters": sum(one.letters for one in kinds),
            "kinds": [one.as_json() for one in kinds],
            "shown": [one.as_json() for one in letters],
            "topics": [one.as_json() for one in topics],
            "records": [one.as_json() for one in records],
        }
        typer.echo(json.dumps(said, indent=2, ensure_ascii=False))
    else:
        out = terminal.console(sys.stdout)
        letter_page.show_list(out, kinds, letters, offset=offset, topics=topics, records=records)


@app.command()
def show(
    document: Name = None,
    id_: Annotated[str | None, typer.Argument(metavar="ID", help="Which of its instances: its _id.")] = None,
    *,
    record: Annotated[
        int | None,
        typer.Option(
            "--record", metavar="NUMBER", parser=whole(least=1, most=_NUMBER_MAX), help="A record of the topic instead."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """All that is known of one that could not be written, what a new attempt would meet, and what to do.

    Nothing is changed. Exit code 0 if there is such a dead letter.

    --json is a list with what `list --json` shows of each index that lacks the document, and
    now (select_fails, refused, writable, gone or unknown), now_error, now_field, now_value_type and do.
    """
    if record is not None and (document is not None or id_ is not None):
        raise ConfigError("--record is not of a document", hint="Leave out the document and its id.")
    if record is None and (document is None or id_ is None):
        raise ConfigError(
            "To show a dead letter takes DOCUMENT and ID, or --record",
            hint="They are shown by: syncer dead-letters list",
        )
    out = terminal.console(sys.stdout)
    with open_parts("dead-letters") as parts:
        if record is not None:
            _show_record(parts, record, out, as_json=as_json)
        else:
            _show_letters(parts, document or "", id_ or "", out, as_json=as_json)


def _show_record(parts: Parts, number: int, out: Console, *, as_json: bool) -> None:
    _require_records(parts, [number])
    (one,) = unreadable.page(parts.connection, [number], limit=1)
    if as_json:
        typer.echo(json.dumps(one.as_json(), indent=2))
    else:
        letter_page.show_record(out, one)


def _show_letters(parts: Parts, name: str, id_: str, out: Console, *, as_json: bool) -> None:
    rows = {one.index_name: one for one in store.documents(parts.connection)}
    selection = _selection(parts, name, (id_,), None, None)
    _require_ids(parts, selection)
    said: list[dict[str, Any]] = []
    for letter in dead_letters.page(parts.connection, selection, limit=len(rows)):
        trial = trying.attempt(parts.connection, parts.index, rows[letter.index_name], letter)
        fault = trial.fault
        now = {
            "now": trial.now,
            "now_error": fault and fault.error,
            "now_field": fault and fault.field,
            "now_value_type": fault and fault.value_type,
            "do": letter_page.advice(letter, trial),
        }
        said.append({**letter.as_json(), **now})
        if not as_json:
            letter_page.show_letter(out, letter, trial)
    if as_json:
        typer.echo(json.dumps(said, indent=2, ensure_ascii=False))


@dataclass(slots=True)
class _Retried:
    """What became of what was tried again.

    Args:
        jobs: The jobs that did it.
        tried: How many documents.
        mended: How many of them are written, or deleted.
        remaining: How many are still parked, of those that were asked for.
        records_sent: How many records are on the topic again.
        records_remaining: How many still cannot be read.
    """

    jobs: list[int]
    tried: int = 0
    mended: int = 0
    remaining: int = 0
    records_sent: int = 0
    records_remaining: int = 0


@app.command()
def retry(
    document: Name = None,
    ids: Ids = None,
    *,
    everything: All = False,
    kind: OfKind = None,
    field: OfField = None,
    records: Records = False,
    record: OneRecord = None,
    as_json: AsJson = False,
) -> None:
    """Try again: to write documents, as a job that the daemons do; or to read records. Exit code 1 if any remain.

    What was mended by a change of its data is written by that change; and what was
    mended by `syncer apply`, by the fill that follows. This is for what syncer cannot
    see: a mapping that was changed by hand, a function, a setting of Elasticsearch.
    What only an index on standby lacks is left as it is.
    A record that can be read now is put on the topic again.

    --json has jobs, tried, mended, remaining, records_sent and records_remaining.
    """
    done = _Retried(jobs=[])
    out = terminal.console(None if as_json else sys.stdout)
    wants_records = _wants_records(
        records=records, record=record, document=document, everything=everything, narrows=(kind, field) != (None, None)
    )
    with open_parts("dead-letters") as parts:
        selection = _selection(parts, document, ids or (), kind, field)
        lacking: list[tuple[Document, int]] = []
        if not wants_records:
            _require_ids(parts, selection)
            lacking = trying.lacking(parts.connection, selection)
        try:
            if wants_records or (everything and document is None and kind is None and field is None):
                _retry_records(parts, record or [], done, out)
            if not wants_records:
                _retry_letters(parts, selection, lacking, done, out)
        finally:  # whatever ends it: what is done is done
            if as_json:
                typer.echo(json.dumps({name: getattr(done, name) for name in _Retried.__dataclass_fields__}, indent=2))
    if done.remaining or done.records_remaining:
        raise typer.Exit(1)


def _retry_letters(
    parts: Parts, selection: Selection, lacking: list[tuple[Document, int]], done: _Retried, out: Console
) -> None:
    if not lacking:
        out.print("There are no such dead letters.")
    for document, letters in lacking:
        _retry_index(parts, document, selection.of_index(document.index_name), letters=letters, done=done, out=out)


def _retry_index(
    parts: Parts, document: Document, selection: Selection, *, letters: int, done: _Retried, out: Console
) -> None:
    """Write again what one index lacks.

    Raises:
        SyncerError: The document was halted meanwhile, or the job was cancelled, or failed.
    """
    query, parameters = dead_letters.ids_query(selection)
    page = parts.settings.worker.batch_documents_max
    job = listing.create_selected(parts.connection, document, JobKind.PART, query, parameters, page=page)
    mended = 0
    if job is not None:
        done.jobs.append(job.id)
        done.tried += job.documents_total or 0
        Filling(parts, out=out, err=terminal.console(sys.stderr)).follow(document, job.id, is_part=True)
        job = find(parts.connection, job.id)
        mended = (job.documents_total or 0) - job.parked
    done.mended += mended
    remaining = max(0, letters - mended)
    done.remaining += remaining
    said = f"{amount(mended, 'document')} of {document.index_name} {'is' if mended == 1 else 'are'} mended"
    rest = f"; {remaining:,} remain{'s' if remaining == 1 else ''}: syncer dead-letters list {document.name}"
    out.print(escape(said + (rest if remaining else "")), soft_wrap=True)


def _retry_records(parts: Parts, numbers: list[int], done: _Retried, out: Console) -> None:
    """Put on the topic again what can be read now; what is on it is forgotten here."""
    _require_records(parts, numbers)
    producer = ChangeProducer(parts.settings.kafka)
    try:
        for kept in _pages(parts, numbers):
            readable = [one for one in kept if one.is_whole and _is_change(one.value)]
            producer.produce((one.key or b"", one.value) for one in readable)
            producer.flush()  # only what is acknowledged is forgotten
            if readable:
                unreadable.discard(parts.connection, [one.id for one in readable])
            done.records_sent += len(readable)
            done.records_remaining += len(kept) - len(readable)
    finally:
        producer.close()
    if done.records_sent or done.records_remaining:
        out.print(f"{amount(done.records_sent, 'record')} put on the topic again")
    if done.records_remaining:
        out.print(f"{amount(done.records_remaining, 'record')} cannot be read by this version either")


def _is_change(value: bytes) -> bool:
    try:
        Change.parse(value)
    except ValueError:
        return False
    return True


def _pages(parts: Parts, numbers: list[int]) -> Iterator[list[Kept]]:
    after = 0
    while kept := unreadable.page(parts.connection, numbers, limit=_RECORDS_AT_ONCE, after=after):
        after = kept[-1].id
        yield kept


@app.command()
def discard(
    document: Name = None,
    ids: Ids = None,
    *,
    everything: All = False,
    kind: OfKind = None,
    field: OfField = None,
    records: Records = False,
    record: OneRecord = None,
    as_json: AsJson = False,
) -> None:
    """Forget dead letters: their documents stay as they are until they change; one that fails again is parked anew.

    --json has letters and records: how many are forgotten.
    """
    wants_records = _wants_records(
        records=records, record=record, document=document, everything=everything, narrows=(kind, field) != (None, None)
    )
    if not wants_records and not (ids or kind or field or everything):
        raise ConfigError(
            f"Which dead letters of {document} are to be forgotten?", hint="Name their ids, --kind, --field, or --all."
        )
    letters = forgotten = 0
    with open_parts("dead-letters") as parts:
        if wants_records:
            _require_records(parts, record or [])
            forgotten = unreadable.discard(parts.connection, record or [])
        else:
            selection = _selection(parts, document, ids or (), kind, field)
            _require_ids(parts, selection)
            letters = dead_letters.discard(parts.connection, selection)
    if as_json:
        typer.echo(json.dumps({"letters": letters, "records": forgotten}, indent=2))
    elif wants_records:
        typer.echo(
            f"{amount(forgotten, 'record')} forgotten. If they were changes, what they touched is stale until it "
            "changes again, or: syncer backfill for each document"
        )
    else:
        typer.echo(
            f"{amount(letters, 'dead letter')} forgotten. The documents stay as Elasticsearch has them until they "
            "change; what fails again is parked anew"
        )


# What was asked for


def _selection(
    parts: Parts, document: str | None, ids: list[str] | tuple[str, ...], kind: str | None, field: str | None
) -> Selection:
    if document is not None:
        parts.document(document)
    return Selection(document=document, ids=tuple(dict.fromkeys(ids)), kind=kind, field=field)


def _wants_records(
    *, records: bool, record: list[int] | None, document: str | None, everything: bool, narrows: bool
) -> bool:
    """Whether it is about records; refuse what is about nothing, or about both, or what would do more than it says."""
    wants_records = records or bool(record)
    if wants_records and (document is not None or everything):
        raise ConfigError("Records are of no document", hint="Leave out the document and --all, or --records.")
    if wants_records and narrows:
        raise ConfigError(
            "Records have no kind and no field: --kind and --field are for documents",
            hint="Which records there are: syncer dead-letters list. Name some with --record, or all with --records.",
        )
    if records and record:
        raise ConfigError("All records, or only some of them?", hint="Leave out --records, or each --record.")
    if not wants_records and document is None and not everything:
        raise ConfigError(
            "Which dead letters?", hint="Name a document, or say --all; or --records for what could not be read."
        )
    return wants_records


def _require_ids(parts: Parts, selection: Selection) -> None:
    """Refuse ids of which there is no dead letter: a mistyped one would look as if it were mended.

    Raises:
        ConfigError: With some of them.
    """
    if not selection.ids:
        return
    found = dead_letters.known(parts.connection, selection)
    missing = [one for one in selection.ids if dead_letters.recorded(one) not in found]
    if missing:
        more = f" and {len(missing) - _MISSING_SHOWN:,} more" if len(missing) > _MISSING_SHOWN else ""
        raise ConfigError(
            f"{selection.document} has no dead letter {', '.join(missing[:_MISSING_SHOWN])}{more}",
            hint=f"Is it mended already? Those that there are: syncer dead-letters list {selection.document}",
        )


def _require_records(parts: Parts, numbers: list[int]) -> None:
    found = {one.id for one in unreadable.page(parts.connection, numbers, limit=len(numbers))} if numbers else set()
    missing = [one for one in numbers if one not in found]
    if missing:
        raise ConfigError(
            f"There is no record {missing[0]}, or no longer", hint="Those that there are: syncer dead-letters list"
        )
