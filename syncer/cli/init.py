"""The command ``syncer init``: draft a document from a table or a SELECT."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from syncer.apply import scaffold
from syncer.apply.scaffold.table import tables
from syncer.base import log, postgres, settings
from syncer.base.errors import SourceError, SyncerError
from syncer.base.postgres import Connection
from syncer.cli import render
from syncer.cli.parameters import UsageError, flag
from syncer.documents import definition


def init(
    *,
    table: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="Table whose rows become documents.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the document (default: the table's name).")
    ] = None,
    referring: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="TABLE", help="Add the rows of a table that refers to it; can be repeated."),
    ] = None,
    from_select: Annotated[
        Path | None,
        typer.Option(
            "--from-select", metavar="FILE", help="Derive the mapping of a SELECT; keep what index.json says."
        ),
    ] = None,
    force: Annotated[bool, flag("--force", text="Overwrite existing files of the document.")] = False,
) -> None:
    """Draft a document from a table or a SELECT.

    Writes a SELECT and a mapping to the config folder. Without an option, lists the tables.
    Columns become fields of a matching type, and rows referenced by foreign keys become
    objects. --with adds a table that references it as an array, in which each row shows the
    rows that it references. Columns that look like passwords, tokens, e-mail addresses or
    other personal data are left out. Omitted columns are reported, and noted as comments in
    select.sql. Does not change the database.

    --from-select derives the mapping of a SELECT that you have written, from the types that
    it returns, also inside JSON that it builds. FILE is a document's select.sql, or any other
    file, which is then copied. Run it again after you have changed the SELECT: it adds what
    index.json lacks, and changes nothing else in it. What types do not show is guessed from
    sampled documents, and reported.

    Overwrites existing files only with --force, and never config/syncer.yaml.
    """
    out = render.console(sys.stdout)
    loaded, folder = settings.load(), settings.config_folder()
    log.configure(loaded.log, is_command=True)
    if name is not None and not definition.is_name(name):
        raise UsageError(f"{name!r} is not a valid document name. Use at most 63 letters, digits, _ and -.")
    if table and from_select:
        raise UsageError("--table and --from-select cannot be combined. Run init once for each.")
    with postgres.connect(loaded.postgres, name="init") as connection:
        if from_select is not None:
            draft = scaffold.from_select(connection, folder, from_select, name, force=force)
        elif table is not None:
            draft = scaffold.from_table(connection, folder, table, name, referring=referring or (), force=force)
        else:
            raise _missing_table(connection)
    for file in scaffold.write(folder, draft):
        render.say(out, f"wrote {file}")
    for remark in draft.remarks:
        render.say(out, f"  {remark}", style="dim")
    render.say(out, "Review the files, then run: syncer migrate, syncer plan, syncer apply, syncer run")


def _missing_table(connection: Connection) -> SyncerError | UsageError:
    found = tables(connection)
    readable = ", ".join(name for name, may_read in found.items() if may_read)
    if readable:
        return UsageError(f"Missing option '--table'. Use one of: {readable}")
    return SourceError(
        f"The role cannot read any of the {len(found)} tables" if found else "The database has no table",
        hint="Run GRANT SELECT as their owner." if found else "Check that postgres.dsn names the right database.",
    )
