"""Parking: documents at fault are set aside as dead letters, and their siblings go on; what is mended is cleared.

A refusal is of a document as it was when it was composed. Whoever has written it meanwhile may have looked for dead
letters before there was this one. So whoever parks looks, in a later snapshot, whether it is still what was at fault;
whoever writes one that changes after that snapshot will find the dead letter.

What cannot be parked is not taken for done: it is trouble, which is told of, and tried again with growing pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import psycopg
import structlog

from syncer import dead_letters, events, fault, metrics
from syncer.compose import Batch, Findings
from syncer.errors import ParkingError
from syncer.fault import Fault
from syncer.index import Rejection
from syncer.policy import Action, decide, kind
from syncer.repeated import Repeated
from syncer.session import Session
from syncer.store import Document

_ISOLATING_SECONDS = 2.0
"""How long at once to look for the documents at fault, before those that are found are parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """Documents of which some made the SELECT raise.

    Args:
        rest: The others, in groups that are to be written.
        parked: How many were parked, and are at fault still.
        is_fruitless: Whether none was found: what was at fault has changed just now, or it is none of them.
    """

    rest: list[list[str]]
    parked: int = 0
    is_fruitless: bool = False


class Parking:
    """Parks what is at fault, and says so. Not for sharing between threads.

    Args:
        session: Of the writer who meets them.
        pause: How to wait; may raise `Stopping`.
    """

    def __init__(self, session: Session, *, pause: Callable[[float], None]) -> None:
        self._session = session
        self._pause = pause
        self._parked: Repeated[tuple[str, str], tuple[str, str | None]] = Repeated(_tell)

    def tell(self) -> None:
        """Say what was parked and is not said yet, if it is time."""
        self._parked.tell()

    def flush(self) -> None:
        """Say all of it."""
        self._parked.flush()

    def park_refused(self, document: Document, version: int, refused: Mapping[str, Rejection]) -> None:
        """Park what Elasticsearch has refused for good."""
        faults = {id_: fault.of_index(one.kind, one.reason, one.composition.source) for id_, one in refused.items()}
        self._park(document, version, faults)

    def changed_since(self, document: Document, refused: Mapping[str, Rejection]) -> list[str]:
        """Those that are no longer what was refused: they are to be written again."""
        try:
            now = self._session.composer.compose(document.index_name, list(refused))
        except psycopg.Error as error:
            if decide(error) is not Action.PARK:
                raise
            return list(refused)
        before = {id_: (one.composition.source, one.composition.routing) for id_, one in refused.items()}
        return [one.id for one in now.compositions if (one.source, one.routing) != before[one.id]]

    def clear(self, document: Document, batch: Batch, *, left: Collection[str]) -> None:
        """Forget the dead letters of what has been written; not of those that are left."""
        written = [one.id for one in batch.compositions if one.id not in left]
        dead_letters.clear(self._session.connection, document.index_name, written, batch.version)

    def isolate(self, index_name: str, ids: Sequence[str]) -> Isolated:
        """Park those of a group for which the SELECT raises; to be tried again as a whole."""
        with self._session.used():
            return self._isolate(index_name, ids)

    def _isolate(self, index_name: str, ids: Sequence[str]) -> Isolated:
        found = self._faults(index_name, ids)
        if found.document is None:
            return Isolated(rest=[])
        self._park(found.document, found.version, found.faults)
        mended = self._mended_since(index_name, list(found.faults)) if found.faults else set()
        rest = [one for one in ids if one not in found.faults or one in mended]
        parked = len(found.faults) - len(mended)
        if found.untried:
            self._pause(0)  # who is told to stop leaves the rest to whoever is next
        if found.faults or not rest:
            return Isolated(rest=[rest] if rest else [], parked=parked)
        middle = len(rest) // 2
        return Isolated(rest=[half for half in (rest[:middle], rest[middle:]) if half], is_fruitless=True)

    def _mended_since(self, index_name: str, parked: list[str]) -> set[str]:
        """Those for which the SELECT no longer raises."""
        still = self._faults(index_name, parked)
        return set(parked) - still.faults.keys() - set(still.untried)

    def _faults(self, index_name: str, ids: Sequence[str]) -> Findings:
        return self._session.composer.faults(index_name, ids, seconds=_ISOLATING_SECONDS)

    def _park(self, document: Document, version: int, faults: Mapping[str, Fault]) -> None:
        """Park documents, and say so: the name of the error only, since a server's sentence quotes values.

        Raises:
            ParkingError: They cannot be recorded, though Postgres is there.
        """
        self._parked.tell()
        try:
            dead_letters.park(self._session.connection, document.index_name, version, faults)
        except psycopg.Error as error:
            if decide(error) is not Action.PARK:
                raise
            raise ParkingError(
                f"Documents of {document.index_name} cannot be parked: {kind(error)}",
                hint="Has somebody changed the table syncer.dead_letter? If not, please report it.",
                kind=kind(error),
            ) from error
        metrics.parked(document.name, len(faults))
        by_kind: dict[str, list[str]] = {}
        for id_, one in faults.items():
            by_kind.setdefault(one.kind, []).append(id_)
        for name, ids in by_kind.items():
            self._parked.note((document.index_name, name), (ids[0], faults[ids[0]].field), len(ids))


def _tell(what: tuple[str, str], number: int, sample: tuple[str, str | None]) -> None:
    index_name, kind = what
    id_, field = sample
    structlog.get_logger().error(
        events.DOCUMENT_PARKED, index=index_name, kind=kind, documents=number, sample_id=id_, field=field
    )
