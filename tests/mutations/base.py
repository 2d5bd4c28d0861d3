"""Rules of errors, connections, logs and threads, taken out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from pydantic import SecretStr

from syncer.base import migrations
from syncer.base.error_policy import Action
from syncer.base.postgres import Connection
from syncer.base.settings import ElasticsearchSettings, KafkaSettings, PostgresSettings
from tests.mutations import Instead

_Table = tuple[tuple[type[psycopg.Error], Action], ...]


def suspends_on_bad_rows(original: _Table) -> _Table:
    """An error in the data of one row is the document's fault."""
    return tuple((kind, Action.SUSPEND if kind is psycopg.DataError else action) for kind, action in original)


def takes_nothing_for_ever(original: Instead, idle_seconds_max: float) -> dict[str, str]:
    """A session may take nothing of an answer for as long as it likes."""
    settings: dict[str, str] = original(idle_seconds_max)
    del settings["tcp_user_timeout"]
    return settings


def waits_for_tables(
    original: Instead, connection: Connection, mode: str, lock: Sequence[str], lock_seconds: float
) -> AbstractContextManager[None]:
    """A component asks for the lock of a table again and again."""
    begun: AbstractContextManager[None] = original(connection, mode, lock, 0)
    return begun


def exists_if_only_in_part(original: Instead, connection: Connection) -> None:
    """A schema that is being restored is taken for a whole one."""
    if not migrations.exists(connection):
        original(connection)


def says_all(original: Instead, self: object, key: Any, count: Any, *, is_due: bool) -> None:
    """What was just said is said again."""
    original(self, key, count, is_due=True)


def waits_for_all(original: Instead, threads: Sequence[threading.Thread]) -> list[str]:
    """A component that does not end is waited for."""
    for thread in threads:
        thread.join()
    return []


def pins_no_search_path(original: dict[str, str]) -> dict[str, str]:
    """Sessions find names as the role does."""
    return {**original, "search_path": '"$user", public'}


def takes_any_host(original: Instead, self: PostgresSettings, dsn: SecretStr, *, target: str) -> str:
    """Of several hosts the first that answers is used, be it a standby."""
    completed: str = original(self, dsn, target="any")
    return completed


def knows_one_node(original: Instead, self: ElasticsearchSettings) -> list[str]:
    """Of several nodes only the first is asked."""
    urls: list[str] = original(self)
    return urls[:1]


def names_no_database(original: Instead, self: KafkaSettings, installation: str) -> KafkaSettings:
    """Every database has the same topic and group by default."""
    made: KafkaSettings = original(self, installation)
    topic = self.topic or "syncer.changes"
    return made.model_copy(update={"topic": topic, "group": self.group or topic})
