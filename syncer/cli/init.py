"""The command ``syncer init``: draft a document from a table or a SELECT."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from syncer.apply.scaffold import catalogue, document as drafting, naming, tree
from syncer.apply.scaffold.document import Draft
from syncer.base import log, postgres, settings
from syncer.base.errors import ConfigError, SourceError, SyncerError
from syncer.base.postgres import Connection
from syncer.cli import render
from syncer.cli.parameters import UsageError
from syncer.documents import definition

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="TABLE[:COLUMNS]", help="Table whose rows become documents; can be repeated."),
]
Paths = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="TABLE[/TABLE…][:COLUMNS]", help="Add rows of another table, along foreign keys."),
]


def init(
    *,
    table: Tables = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the document (default: the table's name).")
    ] = None,
    paths: Paths = None,
    from_select: Annotated[
        Path | None,
        typer.Option(
            "--from-select", metavar="FILE", help="Derive the mapping of a SELECT; keep what index.json says."
        ),
    ] = None,
    personal: Annotated[
        bool, typer.Option("--personal", help="Show also columns that look personal or secret by name.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files of the document.")] = False,
) -> None:
    """Draft a document from a table or a SELECT.

    Writes a SELECT and a mapping to the config folder. Without an option, lists the tables.
    Columns become fields of a matching type, and rows referenced by foreign keys become
    objects. --with adds rows of other tables: those that reference the table, those behind a
    link table, and with a path such as orders/lines/product, those next to them. COLUMNS are
    separated by commas. Columns that look like passwords, tokens, e-mail addresses or other
    personal data are left out unless you name them or add --personal. Omitted and altered
    columns are reported, and noted as comments in select.sql. Does not change the database.

    --from-select derives the mapping of a SELECT that you have written, from the types that
    it returns, also inside JSON that it builds. FILE is a document's select.sql, or any other
    file, which is then copied. Run it again after you have changed the SELECT: it adds what
    index.json lacks, and changes nothing else in it. What types do not tell is guessed from
    sampled documents, and reported.

    Requires only SYNCER_POSTGRES_DSN. Overwrites existing files only with --force, and never
    config/syncer.yaml.
    """
    out = render.console(sys.stdout)
    loaded = settings.load_source()
    log.configure(loaded.log, is_command=True)
    if name is not None and not definition.is_name(name):
        raise UsageError(f"{name!r} is not a valid document name. Use at most 63 letters, digits, _ and -.")
    if table and from_select:
        raise UsageError("--table and --from-select cannot be combined. Run init once for each.")
    with postgres.connect(loaded.postgres, name="init") as connection:
        if from_select is not None:
            drafts = [_from_select(connection, from_select, name, force=force)]
        else:
            if not table:
                raise _missing_table(connection)
            if len(table) > 1 and (name is not None or paths):
                raise UsageError("--name and --with require a single --table. Run init once for each table.")
            drafts = _from_tables(connection, table, name, paths or (), force=force, with_personal=personal)
    for one in drafts:
        for file in drafting.write(settings.config_folder(), one):
            render.say(out, f"wrote {file}")
        for remark in one.remarks:
            out.print(Padding(Text(remark), (0, 0, 0, 2), expand=False), style="dim")
    render.say(out, "Review the files, then run: syncer migrate, syncer plan, syncer apply, syncer run")


def _from_select(connection: Connection, file: Path, document: str | None, *, force: bool) -> Draft:
    named = file.absolute().parent.name if file.name == "select.sql" else file.stem
    name = document or naming.document_name(named)
    if file.absolute().parent != drafting.folder_of(settings.config_folder(), name).absolute():
        _require_free([name], force=force)
    return drafting.from_select(connection, file, settings.config_folder(), name)


def _from_tables(
    connection: Connection,
    chosen: Sequence[str],
    document: str | None,
    paths: Sequence[str],
    *,
    force: bool,
    with_personal: bool,
) -> list[Draft]:
    """Draft all documents before the first is written."""
    found = [(catalogue.find(connection, name), columns) for name, columns in map(tree.split, chosen)]
    names = [document or naming.document_name(table.name) for table, _ in found]
    _require_free(names, force=force)
    drafts = []
    for name, (table, columns) in zip(names, found, strict=True):
        remarks: list[str] = []
        root = tree.grow(connection, table, columns=columns, paths=paths, remarks=remarks, with_personal=with_personal)
        made = drafting.draft(connection, root, name=name, remarks=remarks)
        drafts.append(replace(made, remarks=(*made.remarks, *tree.offers(connection, root))))
    return drafts


def _require_free(names: Sequence[str], *, force: bool) -> None:
    lowered = [one.lower() for one in names]
    for name in names:
        if not force:
            drafting.require_free(settings.config_folder(), name)
        if lowered.count(name.lower()) > 1:
            raise ConfigError(
                f"Two tables have the same document name {name}", hint="Run init for each table, with --name."
            )


def _missing_table(connection: Connection) -> SyncerError | UsageError:
    tables = catalogue.tables(connection)
    readable = ", ".join(name for name, may_read in tables.items() if may_read)
    if readable:
        return UsageError(f"Missing option '--table'. Use one of: {readable}")
    return SourceError(
        f"The role cannot read any of the {len(tables)} tables" if tables else "The database has no table",
        hint="Run GRANT SELECT as their owner." if tables else "Check that postgres.dsn names the right database.",
    )
