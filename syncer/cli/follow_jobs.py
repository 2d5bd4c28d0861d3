"""Follows the jobs of `syncer apply`, `syncer backfill` and `syncer index rebuild` to their end, and shows progress."""

from __future__ import annotations

from collections.abc import Sequence

import elasticsearch
from rich.console import Console

from syncer.apply import reindex
from syncer.apply.activate import InitialLoad
from syncer.base.errors import IndexingError, JobError, SyncerError
from syncer.base.formatting import amount, shortened, shown_id
from syncer.base.model import Role
from syncer.base.postgres import AdvisoryLock
from syncer.cli import jobs, render
from syncer.cli.context import Parts
from syncer.cli.render import say
from syncer.cli.verify import compared, show_verify
from syncer.documents import registry, suspend
from syncer.documents.registry import Document
from syncer.indexing import dead_letters
from syncer.jobs.model import Job, JobState, find
from syncer.verify.compare import VerifyReport
from syncer.worker import job_loop


class LoadProgress:
    """Follows jobs on the screen, and makes a new index current once it is complete.

    Args:
        parts: The servers.
        out: The console for results.
        err: The console for progress.
        despite_dead_lettered: Whether a new index may become current though documents could not be written to it.
    """

    def __init__(self, parts: Parts, *, out: Console, err: Console, despite_dead_lettered: bool = False) -> None:
        self._parts = parts
        self._out = out
        self._err = err
        self._despite_dead_lettered = despite_dead_lettered

    def follow_all(self, initial_loads: Sequence[InitialLoad]) -> None:
        """Run each initial load; a failed one does not stop the others.

        Raises:
            SyncerError: The last failure; earlier ones have been printed.
        """
        failed: list[SyncerError] = []
        self._announce(initial_loads)
        try:
            for initial_load in initial_loads:
                try:
                    self.initial_load(initial_load)
                except SyncerError as error:
                    failed.append(error)
        finally:
            # Even if the loads go on without this command: searches find what is written.
            for initial_load in initial_loads:
                self._settle(initial_load.document)
        for earlier in failed[:-1]:
            render.show_error(self._err, earlier)
        if failed:
            raise failed[-1]

    def initial_load(self, initial_load: InitialLoad) -> None:
        """Write all documents of a definition once; if the index is new, then make it current.

        If another command makes the new index current meanwhile, that is as good.

        Raises:
            SyncerError: It is suspended, or was not written whole, or the new index is not equal to the SELECT.
        """
        document, is_new = initial_load.document, initial_load.document.role is Role.BUILDING
        self._announce([initial_load])
        try:
            if initial_load.job is not None:
                self.follow(document, initial_load.job, is_partial=is_new)
            if is_new:
                self._serve(document)
        except (SyncerError, elasticsearch.ApiError):
            row = self._parts.active(document) if is_new else None
            if row is None or (row.revision, row.role) != (document.revision, Role.CURRENT):
                raise
            say(self._out, f"{row.index} is searched in {row.index_name} now: another command switched it")
        finally:
            self._settle(document)

    def _announce(self, initial_loads: Sequence[InitialLoad]) -> None:
        """Let `syncer status` know that new indices are being built, as long as this command's session lasts."""
        if any(each.document.role is Role.BUILDING for each in initial_loads):
            self._parts.connection.execute("SELECT pg_advisory_lock_shared($1)", (AdvisoryLock.REBUILD,))

    def _settle(self, document: Document) -> None:
        """Give an index that is searched its own settings; a new one beside it gets them once it is loaded."""
        if document.role is Role.CURRENT:
            self._parts.indices.settle(document.target)

    def follow(self, document: Document, job_id: int, *, is_partial: bool = False, is_pending: bool = False) -> Job:
        """Follow a job until it is done; return it.

        Args:
            document: The definition whose documents it writes.
            job_id: The job's id.
            is_partial: Whether the caller handles dead-lettered documents.
            is_pending: Whether a paused job is not waited for.

        Raises:
            DocumentError: The definition is suspended.
            JobError: The job was cancelled, or failed.
            IndexingError: Documents were dead-lettered.
        """
        parts = self._parts
        job = find(parts.connection, job_id)
        try:
            with render.progress(self._err, f"writing {document.index_name}") as show:

                def seen(job: Job) -> None:
                    if is_pending:
                        reindex.require_not_paused(job)
                    show(job.documents_done, job.documents_total, jobs.pace(job))

                job = job_loop.follow(job_id, connect=parts.connect, job_worker=parts.job_worker, progress=seen)
        except KeyboardInterrupt:
            jobs.show_left(self._err, job)
            raise
        except JobError as error:
            if parts.active(document) is None:
                raise JobError(
                    f"Job {job_id} ended with its index: another command has dropped {document.index_name}",
                    hint="To see what is active: syncer status",
                ) from error
            raise
        _require_done(job, parts.active(document))
        say(self._out, f"{job.document}: {jobs.result(job)}")
        if job.dead_lettered and not is_partial:
            raise self._dead_lettered(document, job.dead_lettered)
        return job

    # A new index

    def _serve(self, building: Document) -> None:
        """Settle and verify a loaded index, and make it current."""
        parts = self._parts
        with render.doing(self._err, f"settling {building.index_name}"):
            reindex.settle(parts.connection, parts.indices, building)
        self._wait_for_pending(building)  # so that their documents are compared, too
        report = compared(parts, parts.active(building) or building, err=self._err, repair=True)
        show_verify(self._out, report, building)
        if not report.holds:
            self._require_acceptable(building, report)
        self._wait_for_pending(building)
        before = registry.current(parts.connection)[building.name]
        current = reindex.serve(parts.connection, parts.indices, parts.active(building) or building)
        say(self._out, f"{current.index} is searched in {current.index_name} now")
        say(self._out, f"{before.index_name} is dropped", style="dim")

    def _wait_for_pending(self, building: Document) -> None:
        """Wait for the pending jobs of an index that exist now, but not for later ones.

        Raises:
            DocumentError: The definition is suspended.
            JobError: A job is paused, was cancelled, or failed.
        """
        ids = {job.id for job in reindex.pending(self._parts.connection, building)}
        while left := [job for job in reindex.pending(self._parts.connection, building) if job.id in ids]:
            say(self._out, f"{building.index_name} waits for job {left[0].id} ({left[0].reason})")
            self.follow(building, left[0].id, is_partial=True, is_pending=True)

    def _require_acceptable(self, building: Document, report: VerifyReport) -> None:
        """Refuse an index that differs, except in documents that the current one lacks too, or that were accepted."""
        # What is busy is about to be written, unless the new index refuses it.
        ids = {drift.id for drift in (*report.drifts, *(drift for drift in report.busy if drift.error is not None))}
        connection = self._parts.connection
        dead_lettered = dead_letters.errors(connection, building.index_name, list(ids)).keys()
        served = registry.current(connection)[building.name]
        lacking = dead_letters.errors(connection, served.index_name, list(ids)).keys()
        accepted = dead_lettered if self._despite_dead_lettered else dead_lettered & lacking
        if report.is_complete and report.suspended is None and ids <= accepted:
            return
        if report.is_complete and ids <= dead_lettered:
            raise self._dead_lettered(building, len(dead_lettered))
        raise IndexingError(
            f"{building.index_name} is not equal to its SELECT, and does not serve",
            hint="Searches still use the current index.\n"
            f"To go on: syncer index rebuild {building.name}\nTo give it up: syncer index abort {building.name}",
        )

    def _dead_lettered(self, document: Document, number: int) -> IndexingError:
        connection = self._parts.connection
        groups = dead_letters.kinds(connection, document.name)  # the most frequent kind first
        ids = [group.example for group in groups if group.index_name == document.index_name][:1]
        errors = dead_letters.errors(connection, document.index_name, ids)
        example = "".join(f", such as {shown_id(id_)}: {shortened(error)}" for id_, error in errors.items())
        if document.role is Role.BUILDING:
            hint = (
                "Searches still use the current index.\n"
                f"Fix the data and run: syncer index rebuild {document.name}\n"
                "To go on without these documents, add --despite-dead-lettered.\n"
                "Or fix the SELECT or index.json and run: syncer apply\n"
                f"To give it up: syncer index abort {document.name}"
            )
        else:
            hint = (
                f"Elasticsearch's words on each: syncer dead-letters list {document.name}\n"
                "Fixed data is written by itself. If the SELECT or index.json is fixed: syncer apply"
            )
        return IndexingError(
            f"{amount(number, 'document')} of {document.name} could not be written{example}", hint=hint
        )


def _require_done(job: Job, document: Document | None) -> None:
    """Refuse to continue after a job that was not completed.

    Raises:
        DocumentError: The definition is suspended.
        JobError: It was cancelled, or failed.
    """
    if job.state is JobState.DONE:
        return
    if document is not None:
        suspend.require_active(document)
    what, _, hint = (job.error or "").partition("\n")
    raise JobError(
        f"Job {job.id} {'was cancelled' if job.state is JobState.CANCELLED else 'failed'}: {what}", hint=hint
    )
