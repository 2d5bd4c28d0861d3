"""The command ``syncer backfill``: documents written again, in place or into an index of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, BinaryIO

import typer
from rich.markup import escape

from syncer import completion, halting, job as jobs_kept, jobs, listing, rebuild as rebuilding, terminal
from syncer.entered import number
from syncer.errors import ConfigError, DefinitionError
from syncer.filling import Filling
from syncer.job import Job, JobKind
from syncer.model import ID_BYTES_MAX
from syncer.parts import Parts, open_parts
from syncer.store import Document

Rate = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", parser=number(least=0.1), help="At most so many documents per second."),
]
Where = Annotated[str | None, typer.Option(help="Only those whose row in the root table meets this SQL condition.")]
Ids = Annotated[
    typer.FileBinaryRead | None, typer.Option(help="Only these ids, one on each line of a file; - for standard input.")
]
Rebuild = Annotated[bool, typer.Option("--rebuild", help="Write a new index; searches find it once it is complete.")]
DespiteParked = Annotated[
    bool, typer.Option("--despite-parked", help="With --rebuild: also if documents could not be written.")
]
Abandon = Annotated[bool, typer.Option("--abandon", help="Give up the new index that is being built.")]
Rollback = Annotated[bool, typer.Option("--rollback", help="Search the index before the rebuild again.")]
DropOld = Annotated[bool, typer.Option("--drop-old", help="Drop the index that is kept for a rollback.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def backfill(
    document: completion.Document,
    *,
    rate: Rate = None,
    where: Where = None,
    ids: Ids = None,
    rebuild: Rebuild = False,
    despite_parked: DespiteParked = False,
    abandon: Abandon = False,
    rollback: Rollback = False,
    drop_old: DropOld = False,
    as_json: AsJson = False,
) -> None:
    """Write every document again, and delete what the SELECT no longer returns. Safe beside live traffic.

    The daemons that run do it together; if none does, it is done here. It can be
    interrupted at any point: the same command takes it up where it was.

    With --rebuild the documents go to a new index, made from the index.json that was
    applied. Searches go on with the old one until the new one is complete, verified
    and takes its place at once; the old one is kept up to date for --rollback,
    until --drop-old.

    --json has document, index_name (the index that was written, is searched again, or
    is dropped) and job: what `syncer jobs show --json` says of it, null if it took none.
    """
    steps = {"--rebuild": rebuild, "--abandon": abandon, "--rollback": rollback, "--drop-old": drop_old}
    _require_one({**steps, "--where": where is not None, "--ids": ids is not None})
    _require_with("--despite-parked", wanted=despite_parked, among={"--rebuild": rebuild})
    _require_with(
        "--rate", wanted=rate is not None, among={"a backfill or --rebuild": rebuild or not any(steps.values())}
    )
    with open_parts("backfill") as parts:
        work = _Work(parts=parts, document=parts.document(document), is_quiet=as_json)
        if abandon:
            done = work.abandon()
        elif rollback:
            done = work.roll_back()
        elif drop_old:
            done = work.drop_old()
        elif rebuild:
            done = work.rebuild(rate=rate, despite_parked=despite_parked)
        else:
            done = work.write(where=where, ids=ids, rate=rate)
        if as_json:
            job = None if done.job is None else jobs_kept.find(parts.connection, done.job).as_json()
            typer.echo(json.dumps({"document": document, "index_name": done.index_name, "job": job}, indent=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What was done.

    Args:
        index_name: To which index.
        job: By which job, if by one.
    """

    index_name: str
    job: int | None = None


class _Work:
    """What can be done to a document's indices, and said of it.

    Args:
        parts: The servers.
        document: Which, as it is searched.
        is_quiet: Whether nothing is said on standard output.
    """

    def __init__(self, *, parts: Parts, document: Document, is_quiet: bool) -> None:
        self._parts = parts
        self._document = document
        self._out = terminal.console(None if is_quiet else sys.stdout)
        self._err = terminal.console(sys.stderr)

    def abandon(self) -> _Done:
        dropped = rebuilding.abandon(self._parts.connection, self._parts.indices, self._document.name)
        self._out.print(
            f"{dropped.index_name} is given up; {self._document.index} is searched in {self._document.index_name} "
            "as before",
            soft_wrap=True,
        )
        return _Done(index_name=dropped.index_name)

    def roll_back(self) -> _Done:
        serving = Filling(self._parts, out=self._out, err=self._err).roll_back(self._document)
        return _Done(index_name=serving.index_name)

    def drop_old(self) -> _Done:
        dropped = rebuilding.drop_standby(self._parts.connection, self._parts.indices, self._document.name)
        self._out.print(f"{dropped.index_name} is dropped")
        return _Done(index_name=dropped.index_name)

    def rebuild(self, *, rate: float | None, despite_parked: bool) -> _Done:
        parts = self._parts
        fill = rebuilding.begin(parts.connection, parts.indices, self._document.name, tell=self._tell)
        if fill.job is not None and rate is not None:
            jobs.set_rate(parts.connection, fill.job, rate)
        Filling(parts, out=self._out, err=self._err, despite_parked=despite_parked).fill(fill)
        return _Done(index_name=fill.document.index_name, job=fill.job)

    def write(self, *, where: str | None, ids: BinaryIO | None, rate: float | None) -> _Done:
        halting.require_going(self._document)
        job = _job(self._parts, self._document, where=where, ids=ids, rate=rate)
        Filling(self._parts, out=self._out, err=self._err).follow(self._document, job.id)
        return _Done(index_name=self._document.index_name, job=job.id)

    def _tell(self, line: str) -> None:
        self._out.print(escape(line))


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
    for place, line in enumerate(lines, start=1):
        try:
            id_ = line.decode("utf-8-sig" if place == 1 else "utf-8").strip()  # some editors begin a file with a mark
        except UnicodeDecodeError as error:
            raise ConfigError(f"Line {place} of --ids is not UTF-8", hint="Is it the right file?") from error
        if "\0" in id_ or len(id_.encode()) > ID_BYTES_MAX:
            raise ConfigError(
                f"Line {place} of --ids is no id: an id has 1 to {ID_BYTES_MAX} bytes, and none is zero",
                hint="Is it the right file? It has one id on each line. Nothing was written.",
            )
        if id_:
            yield id_


def _require_one(options: Mapping[str, bool]) -> None:
    given = [name for name, is_given in options.items() if is_given]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} cannot be had together", hint="Run one after the other.")


def _require_with(option: str, *, wanted: bool, among: Mapping[str, bool]) -> None:
    if wanted and not any(among.values()):
        raise ConfigError(f"{option} means something only with {' or '.join(among)}", hint="Leave it out.")
