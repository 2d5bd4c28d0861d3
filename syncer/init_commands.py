"""The command ``syncer init``: a config folder from a table of the database."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from syncer import definition, postgres, settings, telemetry, terminal
from syncer.draft import catalogue, document as drafting, folder, naming
from syncer.draft.catalogue import Listed
from syncer.errors import ConfigError, SourceError
from syncer.postgres import Connection

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="SCHEMA.TABLE", help="Whose rows become documents; can be given several times."),
]


def init(
    *,
    table: Tables = None,
    document: Annotated[
        str | None, typer.Option("--document", metavar="NAME", help="What to call the document, if not as its table.")
    ] = None,
    arrays: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="TABLE", help="Put the rows of a table that refers to it into each document."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a document's files that are there.")] = False,
) -> None:
    """Write a config folder from the database: choose a table, get its SELECT and a mapping that fits.

    Without --table, on a terminal, it asks which. Every column becomes a field whose
    type fits, every row that a foreign key leads to an object, and with --with the
    rows that refer to it a nested array. What is left out, or changed, is said, and
    stands as a comment in select.sql. Nothing in the database is changed.

    Needs no more than SYNCER_POSTGRES_DSN, and writes to the folder that SYNCER_CONFIG
    names, or config. What is there already is never written over without --force,
    config/syncer.yaml not even with it.
    """
    out = terminal.console(sys.stdout)
    loaded = settings.load_source()
    telemetry.configure(loaded.log, is_command=True)
    if document is not None and not definition.is_name(document):
        raise ConfigError(
            f"{document!r} is not a name for a document", hint="Letters, digits, _ and - only, at most 63 of them."
        )
    with postgres.connect(loaded.postgres, name="init") as connection:
        chosen = list(table or ()) or [_asked(out, connection)]
        if len(chosen) > 1 and (document is not None or arrays):
            raise ConfigError("--document and --with are for one table", hint="Run it once for each table.")
        drafts = _drafts(connection, chosen, document, arrays or (), force=force)
    for one in drafts:
        for file in folder.write(settings.config_folder(), one):
            out.print(f"wrote {escape(str(file))}")
        for remark in one.remarks:
            out.print(Padding(escape(remark), (0, 0, 0, 2), expand=False), style="dim")
    out.print("Look it over, then: syncer migrate, syncer plan, syncer apply, syncer run")


def _drafts(
    connection: Connection, chosen: Sequence[str], document: str | None, arrays: Sequence[str], *, force: bool
) -> list[drafting.Draft]:
    """All of them, before the first is written."""
    drafts: list[drafting.Draft] = []
    for one in chosen:
        table = catalogue.find(connection, one)
        name = document or naming.document_name(table.name)
        if not force:
            folder.require_free(settings.config_folder(), name)
        if any(name.lower() == other.name.lower() for other in drafts):
            raise ConfigError(f"Two tables would make a document {name}", hint="Run it for each, with --document.")
        others = [catalogue.find(connection, other) for other in arrays]
        drafts.append(drafting.draft(connection, table, name=name, arrays=others))
    return drafts


def _asked(out: Console, connection: Connection) -> str:
    """The table that somebody on a terminal chooses."""
    listed = [one for one in catalogue.tables(connection) if one.may_read]
    if not listed:
        hidden = len(catalogue.tables(connection))
        raise SourceError(
            f"This role may read none of the {hidden} tables" if hidden else "The database has no table",
            hint="GRANT SELECT to it, by their owner." if hidden else "Does the connection lead to the right database?",
        )
    if not sys.stdin.isatty():
        names = ", ".join(one.shown for one in listed)
        raise ConfigError("No table is named, and nobody is there to choose", hint=f"--table with one of: {names}")
    _show(out, listed)
    while True:
        said = str(typer.prompt("Which table? (number or name)"))
        if said.isdecimal() and 1 <= int(said) <= len(listed):
            return listed[int(said) - 1].relation
        for one in listed:
            if said in (one.shown, one.relation, one.name):
                return one.relation
        out.print(f"There is no {escape(said)} in the list.")


def _show(out: Console, listed: Sequence[Listed]) -> None:
    shown = terminal.table("", "table", "rows, about")
    for number, one in enumerate(listed, start=1):
        shown.add_row(str(number), escape(one.shown), "?" if one.rows is None else f"{one.rows:,}")
    out.print(shown)
