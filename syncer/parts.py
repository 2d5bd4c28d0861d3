"""Parts: what a command works with, opened once from the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from syncer import index as elastic, postgres, schema, service, settings, store, telemetry
from syncer.errors import DefinitionError
from syncer.index import Index
from syncer.indices import Indices
from syncer.lifecycle import Stop
from syncer.postgres import Connection
from syncer.refresher import Refresher
from syncer.settings import Settings
from syncer.store import Document
from syncer.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The servers, and what works on them.

    Args:
        settings: All of them.
        connection: For the command's own questions.
        index: The documents in Elasticsearch.
        indices: The physical indices.
        name: The command; ``pg_stat_activity`` shows it.
    """

    settings: Settings
    connection: Connection
    index: Index
    indices: Indices
    name: str

    def __enter__(self) -> Self:
        """Itself, for a with statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of Postgres."""
        self.close()

    def close(self) -> None:
        """Let go of Postgres."""
        self.connection.close()

    def connect(self) -> Connection:
        """Another connection to Postgres."""
        return postgres.connect(self.settings.postgres, name=self.name)

    def document(self, name: str) -> Document:
        """The document of that name, in the index that searches find.

        Raises:
            DefinitionError: There is none.
        """
        documents = store.served(self.connection)
        if name not in documents:
            known = ", ".join(documents) or "none; run: syncer apply"
            raise DefinitionError(f"No document {name} is in force", hint=f"In force: {known}")
        return documents[name]

    def writer(self) -> Writer:
        """A writer with a connection of its own; to be closed."""
        return Writer(connect=self.connect, index=self.index, pause=Stop().pause, name=self.name)

    def refresher(self) -> Refresher:
        """A lane for jobs."""
        return service.refresher(self.settings, self.index, name=self.name)


def open_parts(name: str) -> Parts:
    """Read the settings and reach the servers.

    Raises:
        SyncerError: A setting is wrong, or the syncer schema is not current.
        psycopg.Error, elasticsearch.ApiError, elasticsearch.TransportError: A server does not answer.
    """
    loaded = settings.load()
    telemetry.configure(loaded.log, is_command=True)
    connection = postgres.connect(loaded.postgres, name=name)
    try:
        schema.require_current(connection)
        client = elastic.connect(loaded.elasticsearch)
    except BaseException:
        connection.close()
        raise
    index = Index(client, bulk_bytes_max=loaded.worker.bulk_bytes_max)
    return Parts(settings=loaded, connection=connection, index=index, indices=Indices(client), name=name)
