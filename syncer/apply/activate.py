"""Activate: turns planned definitions into indices, triggers and active revisions; and undoes all of it.

The order makes it safe beside live traffic. First the triggers are created, so that every change is captured from then
on; a table that cannot be locked, or belongs to another role, leaves every index as it is. Then come the indices. Then
one commit activates the revisions and creates the jobs that write every document once. A job reads after the commit. So
it covers documents composed before it, and documents skipped while the definition was suspended.

`stop_capturing` is for a disk that is nearly full, or an application that is to run without syncer for a while: the
index stays as it is, and `syncer apply` goes on with a refresh of every document. `uninstall` removes all that syncer
has created. After a crash in between, the same call does what is left. No change is forgotten silently: a document is
suspended, and due for a refresh, before its changes go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import psycopg
import structlog

from syncer.apply.plan import NEEDS_INDEX, Plan, PlannedChange, Step, read_active
from syncer.base.errors import ConfigError, DocumentError, IndexingError, SourceError
from syncer.base.model import Role
from syncer.base.postgres import AdvisoryLock, Connection, value, without_blocking
from syncer.base.timeline import TIMELINE
from syncer.capture import install
from syncer.documents import registry, suspend
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices
from syncer.jobs import queue
from syncer.jobs.model import JobKind
from syncer.recovery import orphan_indices

_LOCK_SECONDS = 60.0
"""How long to try for a lock, a moment at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialLoad:
    """A document that a job has to write completely once.

    The job is None if the index is loaded and only has to be settled, and become current.
    """

    document: Document
    job: int | None


def carry_out(
    connection: Connection,
    indices: Indices,
    decided: Plan,
    *,
    report: Callable[[str], None] = lambda _: None,
    timeout_seconds: float = 60,
) -> list[InitialLoad]:
    """Create indices, triggers and revisions as planned; return the loads that are now due, for any job worker.

    The connection needs a role that owns the tables and the syncer schema. ``report`` gets a line for each step.
    Locking a table that is in use is retried for ``timeout_seconds``.

    Raises:
        SyncerError: A step was refused. Tables that were not captured are released; run apply again.
    """
    with alone(connection), ExitStack() as on_failure:
        if decided.active.state() != read_active(connection).state():  # it may have changed while the user was asked
            raise ConfigError(
                "Another process changed the active definitions since the plan was made",
                hint="Nothing was done. Run the same command again: it looks at what is active now.",
            )
        _drop_orphans(connection, indices, decided, report)
        # Record this before the triggers are back: afterwards nothing shows that they were gone.
        missed = [
            document
            for document in registry.documents(connection)
            if decided.active.lost & document.dependencies.tables.keys()
        ]
        queue.mark_incomplete(connection, [document.index_name for document in missed])
        on_failure.callback(_release, connection, decided, report)
        # Rule: capture-before-the-revision.
        for capture in decided.captures:
            install.install(connection, capture, timeout_seconds=timeout_seconds, waiting=report)
            report(f"triggers of {capture.relation} are in place")
        steps = [
            dataclasses.replace(step, document=_with_index(connection, indices, step, report))
            if step.is_new_revision
            else step
            for step in decided.steps
            if step.change is not PlannedChange.UNCHANGED
        ]
        for document in (*decided.abandoned, *decided.removed):
            withdraw(connection, indices, document)
            report(f"index {document.index_name} of {document.name} is dropped")
        with connection.transaction():
            for step in decided.steps:
                if not step.is_new_revision and step.previous and step.is_stored_anew:
                    registry.store(connection, step.document)
            initial_loads = [_activate(connection, step) for step in steps]
            occasion = "triggers were gone, and are there again"
            refreshes = [
                queue.create(connection, document, JobKind.REFRESH, occasion=occasion)
                for document in missed
                if document.suspended is None
            ]
        on_failure.pop_all()
        _take_over(indices, steps, decided.active.installation, report)
        for job in refreshes:
            if job is not None and job.kind is JobKind.REFRESH:  # not if it is being loaded, or gone
                report(f"index {job.index_name} may have missed changes: job {job.id} writes all of it again")
        for capture in decided.captures:
            install.narrow(connection, capture)
        for relation in decided.released:
            install.remove(connection, relation, timeout_seconds=timeout_seconds, waiting=report)
            report(f"released {relation}")
    # A document whose new index is being built stays suspended until that is searched.
    resumed = {step.document.name for step in steps if step.suspended and step.document.role is Role.CURRENT}
    changes = {step.document.name: str(step.change) for step in steps}
    changes |= {name: f"{changes[name]}, resumed" for name in resumed}
    changes |= {document.name: "removed" for document in decided.removed}
    applied = ", ".join(f"{name} ({change})" for name, change in changes.items()) or "without a change"
    structlog.get_logger().info("apply.finished", documents=changes, timeline=f"Applied {applied}.")
    TIMELINE.write(connection)  # a command then follows the loads, which may take hours
    return initial_loads


def _release(connection: Connection, decided: Plan, report: Callable[[str], None]) -> None:
    """Remove the new triggers of tables that no active document reads: no daemon may ever read what they write."""
    with suppress(SourceError, psycopg.Error):  # a table in use is left to the next `syncer apply`
        for relation in sorted(install.captured(connection).keys() - decided.active.captured.keys()):
            install.remove(connection, relation, timeout_seconds=0)
            report(f"triggers of {relation} are removed again")


def _take_over(indices: Indices, steps: list[Step], installation: str, report: Callable[[str], None]) -> None:
    # The rows that name the index are committed: after a crash in between, `apply` asks to take it over again.
    for replaced in (step.previous for step in steps if step.takes_over and step.previous is not None):
        indices.take_over(replaced.target, installation)
        report(f"index {replaced.index_name} is taken over, and gets no more writes")


def withdraw(connection: Connection, indices: Indices, document: Document) -> None:
    """Withdraw and drop an index of a document: the current one after the others. Call it within `alone`.

    Raises:
        IndexingError: The index has an alias that is not syncer's; nothing was changed.
    """
    if document.role is not Role.CURRENT and document.index_name in indices.searched(document.index):
        # A command died after it moved the alias and before it recorded the move.
        indices.swap(document.index, registry.named(connection, document.name)[0].target)
    # While it is active, so that after a crash in between it can be removed again, or applied.
    indices.hide(document.target, document.index)
    # Rule: out-of-force-before-dropping.
    deactivate(connection, document)
    orphan_indices.drop(connection, indices, document.target)


def deactivate(connection: Connection, document: Document) -> None:
    """Deactivate an index that is to be dropped: from the commit on, nothing writes it."""
    with connection.transaction():
        registry.drop_document(connection, document)
        orphan_indices.note(connection, document.target)


def _drop_orphans(connection: Connection, indices: Indices, decided: Plan, report: Callable[[str], None]) -> None:
    for target in decided.active.orphan_indices:
        try:
            orphan_indices.drop(connection, indices, target)
        except IndexingError as error:  # it is searched, and stays
            report(error.message)
        else:
            report(f"index {target.index_name}, left behind by an interrupted command, is dropped")


@contextmanager
def alone(connection: Connection) -> Iterator[None]:
    """Hold the lock under which definitions are activated and withdrawn."""
    if not value(connection, "SELECT pg_try_advisory_lock($1)", (int(AdvisoryLock.APPLY),)):
        raise ConfigError(
            "Another `syncer apply` or `syncer index` is changing what is active", hint="Wait until it is done."
        )
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock($1)", (int(AdvisoryLock.APPLY),))


def _activate(connection: Connection, step: Step) -> InitialLoad:
    document = step.document
    if step.takes_over and step.previous is not None:
        registry.put_document(connection, step.previous)
        orphan_indices.forget(connection, step.previous.target)
        reason = f"{step.previous.index_name} is another installation's, and is searched until a new index replaces it"
        registry.suspend(connection, document.name, step.previous.revision, reason=reason, ids=(), is_stale=True)
    if (
        step.change is PlannedChange.INDEX_GONE
        and step.previous is not None
        and step.previous.target != document.target
    ):
        deactivate(connection, step.previous)
    if step.is_new_revision:
        registry.put_document(connection, document)
        orphan_indices.forget(connection, document.target)
    if document.is_loaded and not step.is_new_revision:
        return InitialLoad(document=document, job=None)
    # Rule: load-the-new-index-after-the-commit.
    job = queue.create(connection, document, JobKind.INITIAL_LOAD, resumes=not step.is_new_revision)
    assert job is not None  # the document is active, and `alone` keeps others from withdrawing it
    return InitialLoad(document=document, job=job.id)


def _with_index(connection: Connection, indices: Indices, step: Step, report: Callable[[str], None]) -> Document:
    """Return the document with its index, which is created or brought up to date."""
    document = step.document
    if step.change is PlannedChange.INDEX_GONE and indices.is_own(document.target):
        indices.swap(document.index, document.target)
        report(f"aliases of {document.index_name} are restored")
    elif step.change in NEEDS_INDEX:
        is_beside = step.change is PlannedChange.REBUILD
        target = indices.create(
            document=document.name,
            alias=document.index,
            body=document.index_body,
            revision=document.revision,
            installation=registry.installation(connection),
            epoch=registry.epoch(connection),
            takes_over=not is_beside,
            replaced=step.previous.target if is_beside and step.previous else None,
            announce=partial(orphan_indices.note, connection),
        )
        if not is_beside:
            indices.swap(document.index, target)
        report(f"index {target.index_name}, searched as {document.index}{', once it is complete' if is_beside else ''}")
        return dataclasses.replace(document, target=target)
    indices.change(document=document.name, target=document.target, body=document.index_body)
    report(f"index {document.index_name} is up to date")
    return document


# The way back


def stop_capturing(connection: Connection, *, report: Callable[[str], None] = lambda _: None) -> None:
    """Disable the triggers of every table, suspend every document and empty the outbox.

    Raises:
        SourceError: A lock was not available in time. Tables before it are no longer captured; run it again.
    """
    with alone(connection):
        for relation in sorted(install.captured(connection)):
            install.disable(connection, relation, timeout_seconds=_LOCK_SECONDS, waiting=report)
            report(f"changes of {relation} are no longer captured")
        for document in registry.documents(connection):
            error = DocumentError(
                "Capturing was stopped by `syncer detach`",
                hint="To go on, run: syncer apply",
                document=document.name,
                revision=document.revision,
                is_stale=True,
            )
            suspend.suspend(connection, error)
        truncate = partial(connection.execute, "TRUNCATE syncer.outbox")
        without_blocking(connection, ["syncer.outbox"], truncate, _LOCK_SECONDS, report)
        report("the outbox is empty; every document is suspended until: syncer apply")


def uninstall(
    connection: Connection, index: Index, indices: Indices, *, report: Callable[[str], None] = lambda _: None
) -> None:
    """Remove the documents with their indices, the triggers, the record in Elasticsearch and the schema.

    Raises:
        IndexingError: An index has an alias that is not syncer's; it and what comes after it are still there.
        SourceError: A lock was not available in time; run it again.
    """
    with alone(connection):
        for document in sorted(registry.documents(connection), key=lambda document: document.role is Role.CURRENT):
            withdraw(connection, indices, document)
            report(f"index {document.index_name} of {document.name} is dropped")
        for target in orphan_indices.find(connection):
            orphan_indices.drop(connection, indices, target)
        for relation in sorted(install.captured(connection)):
            install.remove(connection, relation, timeout_seconds=_LOCK_SECONDS, waiting=report)
            report(f"triggers of {relation} are removed")
        index.record.forget(registry.installation(connection))
        drop = partial(connection.execute, "DROP SCHEMA syncer CASCADE")
        without_blocking(connection, ["syncer.outbox"], drop, _LOCK_SECONDS, report)
        report("the schema syncer is dropped")
