"""What commands have in common: options, the question before a destructive step, settings, and servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from syncer.base import log, migrations, postgres, settings
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.base.timeline import TIMELINE
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices


def flag(*names: str, text: str) -> Any:
    """An option that takes no value; the help shows none."""
    return typer.Option(*names, help=text, metavar="")


DocumentName = Annotated[str, typer.Argument(metavar="DOCUMENT", help="Document name.")]
AnyDocument = Annotated[str | None, typer.Argument(metavar="DOCUMENT", help="Document name (default: all).")]
OpenSearch = Annotated[str | None, typer.Option(help="2 or 3: run OpenSearch in the place of Elasticsearch.")]
NoKafka = Annotated[bool, flag("--no-kafka", text="Run without Kafka: one daemon at a time handles changes.")]
AsJson = Annotated[bool, flag("--json", text="Print JSON.")]
Yes = Annotated[bool, flag("--yes", "-y", text="Do not ask for confirmation.")]
Values = Annotated[bool, flag("--values", text="Show values that differ, which may be sensitive.")]
AllowFailed = Annotated[bool, flag("--allow-failed-documents", text="Go on even if documents cannot be written.")]


class UsageError(typer.BadParameter):
    """The command line contradicts itself, or lacks something. Exit code 2, as for an unknown option."""

    def format_message(self) -> str:
        """Return the message alone: no single parameter is at fault."""
        return self.message


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a destructive step, unless the command was called with --yes; an answer other than yes ends it."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("Confirmation required, but standard input is not a terminal. Add --yes.")
    typer.confirm(question, abort=True, err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
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
        """The definition with this name, of the index that searches find."""
        return registry.named(self.connection, name)[0]

    def active(self, document: Document) -> Document | None:
        """The definition that is active for a document's index by now; None if none is."""
        documents = registry.documents(self.connection)
        return next((active for active in documents if active.index_name == document.index_name), None)


def load_settings() -> Settings:
    """Read the settings, and log as a command does."""
    loaded = settings.load()
    log.configure(loaded.log, is_command=True)
    return loaded


@contextmanager
def open_postgres(name: str) -> Iterator[Connection]:
    """Connect to Postgres alone; the syncer schema must be current."""
    with closing(postgres.connect(load_settings().postgres, name=name)) as connection:
        migrations.require_current(connection)
        yield connection


@contextmanager
def open_servers(name: str, *, is_migrated: bool = True) -> Iterator[Servers]:
    """Connect to the servers; in the end, write the timeline of the command.

    The syncer schema must be current, if ``is_migrated``; otherwise it need not exist.
    """
    loaded = load_settings()
    with closing(postgres.connect(loaded.postgres, name=name)) as connection:
        if is_migrated:
            migrations.require_current(connection)
            loaded = loaded.of(registry.installation(connection))
        client = elastic.connect(loaded.elasticsearch, is_patient=True)
        index = Index(client)
        try:
            yield Servers(settings=loaded, connection=connection, index=index, indices=Indices(client), name=name)
        finally:
            TIMELINE.write(connection)
