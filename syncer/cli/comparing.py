"""Runs `verify` for one document and shows its progress."""

from __future__ import annotations

from contextlib import closing, nullcontext

from rich.console import Console

from syncer.base.errors import DocumentError
from syncer.cli import render
from syncer.cli.context import Parts
from syncer.documents import queries, registry
from syncer.documents.registry import Document
from syncer.verify import last_result
from syncer.verify.compare import SETTLE_SECONDS, VerifyReport, verify


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
    """Verify one document in one index; if it is suspended, or has to be, the report says so.

    If another definition is applied meanwhile, the comparison starts again with that one.

    Args:
        parts: The servers.
        document: Its definition.
        err: Where to show progress.
        settle_seconds: As `verify` takes it, like the following.
        sample: How many documents, chosen at random; None for all.
        values: Whether to report the values that differ.
        repair: Whether to write again what differs.
    """

    def verified() -> VerifyReport:
        if document.suspended is not None:
            return suspended(document.suspended)
        expected = sample or queries.count(parts.connection, document)
        try:
            with (
                closing(parts.writer()) if repair else nullcontext() as writer,
                render.progress(err, f"comparing {document.index_name}") as tell,
            ):
                return verify(
                    parts.connect,
                    document,
                    index=parts.index,
                    settle_seconds=settle_seconds,
                    sample=sample,
                    values=values,
                    repair=writer,
                    # A full bar that stays needs a word.
                    progress=lambda done: tell(
                        done, max(done, expected), "" if done < expected else "looking again at what differs"
                    ),
                )
        except DocumentError as error:
            return suspended(f"{error.message}\n{error.hint}")

    def suspended(why: str) -> VerifyReport:
        return VerifyReport(document=document.name, index_name=document.index_name, suspended=why)

    while True:
        report = verified()
        now = active(parts, document)
        if now is None or now.revision == document.revision:
            break
        document = now
    if sample is None and report.suspended is None and (report.holds or report.has_drifted):  # else nothing is known
        last_result.note(
            parts.connection,
            report.index_name,
            documents=report.documents,
            drifted=len(report.drifts),
            repaired=len(report.repaired),
            is_complete=report.is_complete,
        )
    return report


def active(parts: Parts, document: Document) -> Document | None:
    """The definition that is active for a document's index by now; None if none is."""
    return next((one for one in registry.documents(parts.connection) if one.index_name == document.index_name), None)
