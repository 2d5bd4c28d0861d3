"""Rules of versions and cluster identities, taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from syncer.base.postgres import Connection
from syncer.elasticsearch.bulk import Index
from syncer.indexing import failover
from syncer.indexing.failover import ClusterIdentity, Origin
from tests.mutations import Instead


def locks_while_it_asks(
    original: Instead, connection: Connection, record: Index, *, if_changed: Callable[[], object] = lambda: None
) -> ClusterIdentity:
    """The cluster identity is locked before Elasticsearch is asked."""
    connection.execute("BEGIN")
    connection.execute(failover._REMEMBERED)
    found: ClusterIdentity = original(connection, record, if_changed=if_changed)
    return found


def enters_and_refreshes_nothing(
    original: Instead,
    connection: Connection,
    record: Index,
    *,
    if_changed: Callable[[], object] = lambda: None,
) -> ClusterIdentity:
    """No document is refreshed in a new life of the database."""
    found: ClusterIdentity = original(connection, record)
    return found


def the_same_epoch(original: Instead, remembered: int, recorded: int) -> int:
    """Only the first cluster identity gets an epoch."""
    return max(remembered, 1)


def one_more_than_remembered(original: Instead, remembered: int, recorded: int) -> int:
    """What Elasticsearch has recorded does not count."""
    return remembered + 1


def one_more_than_recorded(original: Instead, remembered: int, recorded: int) -> int:
    """What Postgres remembers does not count."""
    return recorded + 1


def any_entered(original: Instead, remembered: Sequence[Any], current: Sequence[Any]) -> bool:
    """Whatever was entered once is the same."""
    return any(remembered)


def whatever_sequence(original: Instead, remembered: Sequence[Any], current: Sequence[Any]) -> bool:
    """A sequence that was made anew is the same."""
    return tuple(remembered[:2]) == tuple(current[:2])


def nothing_recorded(
    original: Instead, connection: Connection, query: str, recorded: int, assigned: int
) -> tuple[ClusterIdentity, bool]:
    """An epoch may be behind the record."""
    found: tuple[ClusterIdentity, bool] = original(connection, query, 0, assigned)
    return found


def never_lost(original: Instead, connection: Connection, record: Index, version: int) -> Origin:
    """A version of a life that was lost is taken for somebody else's."""
    found: Origin = original(connection, record, version)
    return Origin.FOREIGN if found is Origin.LOST else found
