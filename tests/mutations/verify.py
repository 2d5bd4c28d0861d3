"""Rules of verify, taken out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast
from unittest import mock

from syncer.base.write_report import WriteReport
from syncer.indexing.writer import Writer
from syncer.verify.compare import VerifyReport
from syncer.verify.diff import Drift
from syncer.verify.recheck import Recheck, Seen
from tests.mutations import Instead


def takes_all_as_due(original: Instead, self: Recheck, suspects: dict[str, Any], due_since: float, seen: Seen) -> bool:
    """What differs at the first look is drift, whatever is on its way."""
    with mock.patch.object(type(self.watermark), "is_through", return_value=True):
        is_waiting: bool = original(self, suspects, time.monotonic(), seen)
        return is_waiting


def looks_before_it_asks(
    original: Instead, self: Recheck, suspects: dict[str, Any], ids: Sequence[str], due_since: float, seen: Seen
) -> list[Drift]:
    """Jobs are asked for after the last look."""
    last = self._look(suspects, ids)
    with mock.patch.object(Recheck, "_look", return_value=last):
        drifts: list[Drift] = original(self, suspects, ids, due_since, seen)
        return drifts


def nothing_too_many(original: Instead, self: object, view: object, number: int, *, room: int) -> set[str]:
    """As many copies as rows are taken to be the same."""
    extras: set[str] = original(self, view, 0, room=room)
    return extras


def fixes_on_one_shard(original: Instead, writer: Writer, recheck: Recheck, report: VerifyReport) -> None:
    """A repair deletes from the shard only that the document belongs to."""
    original(cast("Writer", _WritingNowhereElse(writer)), recheck, report)


class _WritingNowhereElse:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def write(self, index_name: str, ids: Sequence[str], *, everywhere: bool = False) -> WriteReport:
        """Write on the document's own shard only."""
        return self._writer.write(index_name, ids)
