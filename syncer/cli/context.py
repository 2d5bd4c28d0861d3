"""The servers and settings of a command, opened once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from syncer import daemon
from syncer.base import log, migrations, postgres, settings
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.base.timeline import TIMELINE
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices
from syncer.worker.job_loop import JobWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The servers, and the objects that use them; ``pg_stat_activity`` shows the command's name."""

    settings: Settings
    connection: Connection
    index: Index
    indices: Indices
    name: str

    def connect(self) -> Connection:
        """Open another connection to Postgres."""
        return postgres.connect(self.settings.postgres, name=self.name)

    def document(self, name: str) -> Document:
        """The definition with this name, of the index that searches find.

        Raises:
            DefinitionError: There is none.
        """
        return registry.named(self.connection, name)[0]

    def active(self, document: Document) -> Document | None:
        """The definition that is active for a document's index by now; None if none is."""
        documents = registry.documents(self.connection)
        return next((active for active in documents if active.index_name == document.index_name), None)

    def job_worker(self) -> JobWorker:
        """A job worker with a connection of its own."""
        return daemon.job_worker(self.settings, self.index, name=self.name)


@contextmanager
def open_parts(name: str, *, is_migrated: bool = True) -> Iterator[Parts]:
    """Read the settings and connect to the servers; in the end, write the timeline of the command.

    Unless ``is_migrated``, it does without the syncer schema.

    Raises:
        SyncerError: A setting is wrong, or the syncer schema is not current.
        psycopg.Error, elasticsearch.ApiError, elasticsearch.TransportError: A server does not answer.
    """
    loaded = settings.load()
    log.configure(loaded.log, is_command=True)
    with closing(postgres.connect(loaded.postgres, name=name)) as connection:
        if is_migrated:
            migrations.require_current(connection)
            loaded = loaded.of(registry.installation(connection))
        client = elastic.connect(loaded.elasticsearch)
        index = Index(client)
        try:
            yield Parts(settings=loaded, connection=connection, index=index, indices=Indices(client), name=name)
        finally:
            TIMELINE.write(connection)
