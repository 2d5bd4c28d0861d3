"""Filling: what `syncer apply` and `syncer backfill` do until documents are written, in view of whoever asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import elasticsearch
from rich.console import Console
from rich.markup import escape

from syncer import dead_letters, findings, halting, rebuild, store, terminal
from syncer.apply import Fill
from syncer.backfill import Follower
from syncer.comparing import compared
from syncer.errors import DefinitionError, IndexingError, JobError, SyncerError
from syncer.job import Job, JobState, find
from syncer.lifecycle import Stop
from syncer.model import Role
from syncer.parts import Parts
from syncer.store import Document
from syncer.verify import VerifyReport
from syncer.wording import amount, shortened


class Filling:
    """Follows jobs on the screen, and lets a new index serve once it is complete.

    Args:
        parts: The servers.
        out: Where to say what was done.
        err: Where to show how far it is.
        despite_parked: Whether a new index may serve though some documents could not be written to it.
    """

    def __init__(self, parts: Parts, *, out: Console, err: Console, despite_parked: bool = False) -> None:
        self._parts = parts
        self._out = out
        self._err = err
        self._despite_parked = despite_parked
        self._fresh: frozenset[int] = frozenset()

    def fill_all(self, fills: Iterable[Fill]) -> None:
        """Fill each; one that fails keeps none of the others waiting.

        Raises:
            SyncerError: The last that failed; those before it have been shown.
        """
        fills, failed = list(fills), list[SyncerError]()
        # While the first is followed here, lanes do the others, too: that takes up nothing that somebody has left.
        made = [find(self._parts.connection, fill.job) for fill in fills if fill.job is not None]
        self._fresh = frozenset(job.id for job in made if not job.documents_done)
        for fill in fills:
            try:
                self.fill(fill)
            except SyncerError as error:
                failed.append(error)
        if failed:
            *others, last = failed
            for one in others:
                terminal.show_error(self._err, one)
            raise last

    def fill(self, fill: Fill) -> None:
        """Write a document once; if its index is a new one, let it serve then.

        Raises:
            SyncerError: It is halted, or was not written whole, or the new index is not equal to the SELECT.
        """
        if fill.document.role is Role.BUILDING:
            self._build(fill)
        elif fill.job is not None:
            self.follow(fill.document, fill.job)

    def follow(self, document: Document, job_id: int, *, is_part: bool = False, is_owed: bool = False) -> None:
        """Follow a job until it is done.

        Args:
            document: Which it writes.
            job_id: The job's id.
            is_part: Whether parked documents are left to who goes on.
            is_owed: Whether it is not waited for while it is paused.

        Raises:
            DocumentError: The document is halted.
            JobError: The job was cancelled, or failed.
            IndexingError: Documents were parked.
        """
        parts = self._parts
        job = find(parts.connection, job_id)
        if job.documents_done and job_id not in self._fresh:
            terminal.show_taken_up(self._err, job)
        follower = Follower(connect=parts.connect, refresh=parts.refresher, stop=Stop())
        try:
            with terminal.job_progress(self._err, f"writing {document.index_name}") as show:
                job = follower.follow(job_id, partial(_show_going, show) if is_owed else show)
        except KeyboardInterrupt:
            terminal.show_left(self._err, job, is_building=document.role is Role.BUILDING)
            raise
        finally:
            follower.close()
        _require_done(job, self._row(document))
        terminal.show_job(self._out, job)
        if job.parked and not is_part:
            raise _parked(parts, document, job.parked)

    def _row(self, document: Document) -> Document | None:
        rows = store.documents(self._parts.connection)
        return next((one for one in rows if one.index_name == document.index_name), None)

    # A new index

    def _build(self, fill: Fill) -> None:
        """Fill a new index and let it serve, unless another command lets it serve, or gives it up, meanwhile."""
        building = fill.document
        try:
            if fill.job is not None:
                self.follow(building, fill.job, is_part=True)
            self._serve(building)
        except (SyncerError, elasticsearch.ApiError) as error:
            row = self._row(building)
            if row is None or row.generation != building.generation:
                raise DefinitionError(
                    f"{building.index_name} is being built no more",
                    hint="Somebody has given it up, or applied another definition. See: syncer status",
                ) from error
            if row.role is not Role.SERVING:
                raise
            self._out.print(f"{escape(row.index)} is searched in {row.index_name} now: another command has seen to it")

    def _serve(self, building: Document) -> None:
        try:
            self._complete(building)
        except KeyboardInterrupt:
            terminal.show_unserved(self._err, building)
            raise

    def _complete(self, building: Document) -> None:
        parts = self._parts
        with terminal.doing(self._err, f"settling {building.index_name}"):
            rebuild.settle(parts.connection, parts.indices, building, seconds_max=rebuild.SETTLE_SECONDS_MAX)
        self._wait_for_owed(building)  # so that it is compared, too
        report = compared(parts, self._row(building) or building, err=self._err, repair=True)
        findings.show_verify(self._out, report)
        if not report.holds:
            self._require_acceptable(building, report)
        self._wait_for_owed(building)
        older = store.by_role(parts.connection, building.name).get(Role.STANDBY)
        serving = rebuild.serve(parts.connection, parts.indices, self._row(building) or building)
        self._out.print(f"{escape(serving.index)} is searched in {serving.index_name} now")
        if older is not None:
            self._out.print(f"{older.index_name}, kept for a rollback until now, is dropped")
        self._out.print(
            f"The index before is kept up to date. Back to it: syncer backfill {serving.name} --rollback\n"
            f"Once it is not needed any more: syncer backfill {serving.name} --drop-old",
            style="dim",
            soft_wrap=True,
        )

    def roll_back(self, before: Document) -> Document:
        """Let searches find the index before again, once it has what the one that serves may have; the one that serves.

        Raises:
            SyncerError: There is none, or it may lack something: searches go on where they were.
        """
        connection = self._parts.connection
        self._wait_for_owed(rebuild.standby(connection, before.name))
        serving = rebuild.roll_back(connection, self._parts.indices, before.name)
        terminal.show_rolled_back(self._out, serving, before=before)
        return serving

    def _wait_for_owed(self, building: Document) -> None:
        """Wait for the jobs that an index lacks, of those that are there now; not for those that come meanwhile.

        Raises:
            DocumentError: The document is halted.
            JobError: One is paused, was cancelled, or failed.
        """
        for _ in range(2):  # see `rebuild.owed`
            ids = {one.id for one in rebuild.owed(self._parts.connection, building)}
            while left := [one for one in rebuild.owed(self._parts.connection, building) if one.id in ids]:
                self._out.print(f"{building.index_name} waits for job {left[0].id} ({escape(left[0].reason)})")
                self.follow(building, left[0].id, is_part=True, is_owed=True)

    def _require_acceptable(self, building: Document, report: VerifyReport) -> None:
        """Refuse an index that differs, unless in no more than what the one that serves lacks too, or was accepted."""
        ids = [drift.id for drift in (*report.drifts, *report.coming)]
        connection = self._parts.connection
        parked = set(dead_letters.errors(connection, building.index_name, ids))
        served = store.served(connection)[building.name]
        lacking = set(dead_letters.errors(connection, served.index_name, ids))
        accepted = parked if self._despite_parked else parked & lacking
        if report.is_complete and report.halted is None and accepted >= set(ids):
            return
        if report.is_complete and parked >= set(ids):
            raise _parked(self._parts, building, len(parked))
        raise IndexingError(
            f"{building.index_name} is not equal to its SELECT, and does not serve",
            hint="What was searched before is searched still. "
            f"To go on: syncer backfill {building.name} --rebuild; to give it up: --abandon",
        )


def _show_going(show: Callable[[Job], None], job: Job) -> None:
    rebuild.require_not_paused(job)
    show(job)


def _require_done(job: Job, document: Document | None) -> None:
    """Refuse to go on after a job that did not come to its end.

    Raises:
        DocumentError: The document is halted.
        JobError: It was cancelled, or failed.
    """
    if job.state is JobState.DONE:
        return
    if document is not None:
        halting.require_going(document)
    what, _, hint = (job.error or "").partition("\n")
    raise JobError(
        f"Job {job.id} {'was cancelled' if job.state is JobState.CANCELLED else 'failed'}: {what}", hint=hint
    )


def _parked(parts: Parts, document: Document, number: int) -> IndexingError:
    worst = dead_letters.worst(parts.connection, document.index_name)
    said = f", such as {shortened(worst[0])}: {terminal.brief(worst[1])}" if worst else ""
    if document.role is Role.BUILDING:
        hint = (
            f"{document.index_name} does not serve; what was searched before is searched still.\n"
            f"Mend the data and run: syncer backfill {document.name} --rebuild (with --despite-parked it serves\n"
            "without them). Or mend the SELECT or index.json and run: syncer apply. Or give it up: --abandon"
        )
    else:
        hint = (
            f"What was said of each: syncer dead-letters list {document.name}\n"
            "Mended data is written by itself. If the SELECT or index.json is mended: syncer apply"
        )
    return IndexingError(f"{amount(number, 'document')} of {document.name} could not be written{said}", hint=hint)
