"""The command ``syncer init``: draft a document from a table or a SELECT."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from syncer.apply import scaffold
from syncer.apply.scaffold.table import tables
from syncer.base import postgres, settings
from syncer.cli.context import UsageError, flag, load_settings
from syncer.cli.render import say
from syncer.documents import definition


def init(
    *,
    table: Annotated[str | None, typer.Option(help="Table whose rows become documents.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the document (default: the table's name).")] = None,
    referring: Annotated[
        list[str] | None, typer.Option("--with", help="Add the rows of a table that refers to it; can be repeated.")
    ] = None,
    from_select: Annotated[
        Path | None, typer.Option(help="Derive the mapping of the SELECT in this file; keep what index.json says.")
    ] = None,
    force: Annotated[bool, flag("--force", text="Overwrite existing files of the document.")] = False,
) -> None:
    """Draft a document from a table or a SELECT.

    Writes a SELECT and a mapping to the config folder. Without an option, lists the tables.
    Columns become fields of a matching type, and rows referenced by foreign keys become
    objects. --with adds a table that references it as an array, in which each row shows the
    rows that it references. Columns that look like passwords, tokens or personal data are left
    out, reported, and noted as comments in select.sql. Does not change the database.

    --from-select derives the mapping from the types that a SELECT returns, also inside JSON.
    The file is a document's select.sql, or any other one, which is then copied. Run it again
    after you have changed the SELECT: it adds what index.json lacks, and changes nothing else.
    What types do not show is guessed from sampled documents, and reported.

    Overwrites existing files only with --force, and never config/syncer.yaml.
    """
    loaded, folder = load_settings(), settings.config_folder()
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
            readable = ", ".join(name for name, may_read in tables(connection).items() if may_read)
            nothing = "the role can read none. Check postgres.dsn, or run GRANT SELECT as their owner."
            raise UsageError(f"Missing option '--table'. The tables: {readable or nothing}")
    for file in scaffold.write(folder, draft):
        say(f"wrote {file}")
    for remark in draft.remarks:
        say(f"  {remark}", style="dim")
    say("Review the files, then run: syncer migrate, syncer plan, syncer apply, syncer run")
