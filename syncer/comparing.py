"""Comparing: a document with its SELECT, in view of whoever asked for it."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from syncer import compose, store, terminal, verification
from syncer.errors import DocumentError
from syncer.parts import Parts
from syncer.store import Document
from syncer.verify import SETTLE_SECONDS, VerifyReport, verify


def compared(
    parts: Parts,
    document: Document,
    *,
    err: Console,
    settle_seconds: float = SETTLE_SECONDS,
    sample: int | None = None,
    values: bool = False,
    repair: bool = False,
) -> VerifyReport:
    """Verify one document in one index; one that is halted, or has to be, says so in the report.

    What is applied anew meanwhile is compared again: it is no drift that documents are not what they were to be before.

    Args:
        parts: The servers.
        document: Which.
        err: Where to show how far it is.
        settle_seconds: As `verify` takes it, like the following.
        sample: How many, chosen at random; None for all.
        values: Whether to report the values that differ.
        repair: Whether to write again what differs.
    """
    while True:
        report = _compared(
            parts, document, err=err, settle_seconds=settle_seconds, sample=sample, values=values, repair=repair
        )
        now = _in_force(parts, document)
        if now is None or now.generation == document.generation:
            break
        document = now
    if sample is None and report.halted is None and (report.holds or report.has_drifted):  # else nothing is known
        _note(parts, report)
    return report


def _in_force(parts: Parts, document: Document) -> Document | None:
    """The definition that is in force for a document's index by now; None if none is."""
    return next((one for one in store.documents(parts.connection) if one.index_name == document.index_name), None)


def _compared(
    parts: Parts,
    document: Document,
    *,
    err: Console,
    settle_seconds: float,
    sample: int | None,
    values: bool,
    repair: bool,
) -> VerifyReport:
    halted = partial(VerifyReport, document=document.name, index_name=document.index_name)
    if document.halted is not None:
        return halted(halted=document.halted)
    writer = parts.writer()
    try:
        expected = sample or compose.count(parts.connection, document)
        again = "looking again at what differs, if anything does"
        with terminal.progress(err, f"comparing {document.index_name}", expected, then=again) as advance:
            return verify(
                parts.connect,
                document,
                index=parts.index,
                kafka=parts.settings.kafka,
                settle_seconds=settle_seconds,
                sample=sample,
                values=values,
                repair=writer if repair else None,
                progress=advance,
            )
    except DocumentError as error:
        return halted(halted=f"{error.message}\n{error.hint}")
    finally:
        writer.close()


def _note(parts: Parts, report: VerifyReport) -> None:
    """Leave what was found to who watches."""
    verification.note(
        parts.connection,
        report.index_name,
        documents=report.documents,
        drifted=len(report.drifts),
        repaired=len(report.repaired),
        is_complete=report.is_complete,
    )
