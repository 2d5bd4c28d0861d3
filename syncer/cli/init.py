"""The command ``syncer init``: draft a document from a table or a SELECT, never over existing files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from syncer.base import postgres, settings
from syncer.base.errors import ConfigError
from syncer.base.postgres import Connection
from syncer.base.settings import shipped
from syncer.cli.context import UsageError, flag, load_settings
from syncer.cli.render import say
from syncer.documents import definition
from syncer.drafts import mapping
from syncer.drafts.catalogue import Catalogue
from syncer.drafts.draft import Drafter

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARACTERS_MAX = 63


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
    columns: Annotated[bool, flag("--columns", text="Take all columns of --table, and of what it shows.")] = False,
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
    loaded = load_settings()
    if name is not None and not definition.is_name(name):
        raise UsageError(f"{name!r} is not a valid document name. Use at most 63 letters, digits, _ and -.")
    if table and from_select:
        raise UsageError("--table and --from-select cannot be combined. Run init once for each.")
    with postgres.connect(loaded.postgres, name="init") as connection:
        if from_select is not None:
            own = from_select.absolute().parent
            default = own.name if from_select.name == "select.sql" else from_select.stem
            folder = _folder(name or default, force=force, own=own)
            files, remarks = _of_select(connection, folder, from_select)
        elif table is not None:
            drafter = Drafter(connection=connection, catalogue=Catalogue(connection), has_all_columns=columns)
            folder = _folder(name or drafter.catalogue.find(table).name, force=force)
            files, remarks = _of_table(drafter, folder.name, table, referring or ())
        else:
            readable = [name for name, may_read in Catalogue(connection).relations.items() if may_read]
            if not readable:
                raise UsageError("The role can read no table. Check postgres.dsn, or run GRANT SELECT as their owner.")
            say("\n".join(readable))
            return
    _write(folder, files)
    for remark in remarks:
        say(f"  {remark}", style="dim")
    say("Review the files, then run: syncer migrate, syncer plan, syncer apply, syncer run")


def _folder(name: str, *, force: bool, own: Path | None = None) -> Path:
    """Return the folder of a document; its name may be that of a table or file."""
    plain = _NOT_IN_NAMES.sub("_", name).strip("_-")[:_NAME_CHARACTERS_MAX] or "document"
    folder = settings.config_folder() / "documents" / plain
    if not force and folder.absolute() != own and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty", hint="Name another document with --name, or write over it with --force."
        )
    return folder


def _of_table(drafter: Drafter, name: str, table: str, asked: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Draft the files of a document of a table's rows, and say what to know of it."""
    root = drafter.catalogue.find(table)
    query = drafter.select(root, asked)
    made = mapping.completed(drafter.connection, query, name, mapping.EMPTY_BODY)
    remarks = [*drafter.remarks, *made.remarks]
    title = f"Rows of {root.relation}, drafted by syncer init. It is yours: change what you like."
    comments = "".join(f"-- {' '.join(line.split())}\n" for line in (title, *remarks))
    return {"document.yaml": _options(name), "select.sql": comments + query, "index.json": _text(made.body)}, remarks


def _of_select(connection: Connection, folder: Path, file: Path) -> tuple[dict[str, str], list[str]]:
    """Return the mapping of a written SELECT, and what else its document lacks. What index.json says is kept."""
    query, index, select_file = definition.read_sql(file), folder / "index.json", folder / "select.sql"
    given = definition.read_index_body(index) if index.exists() else mapping.EMPTY_BODY
    made = mapping.completed(connection, query, str(file), given)
    files, remarks = {"index.json": _text(made.body)}, list(made.remarks)
    if not made.added:
        files, remarks = {}, [f"Nothing to add: {index} maps every field of the SELECT"]
    if not (folder / "document.yaml").exists():
        files["document.yaml"] = _options(folder.name)
    if not (select_file.exists() and file.samefile(select_file)):
        files["select.sql"] = file.read_text("utf-8-sig")
    return files, remarks


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write the files of a draft, and config/syncer.yaml if there is none."""
    own = settings.config_folder() / "syncer.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not own.exists():
            shutil.copyfile(shipped("config") / "syncer.template.yaml", own)
            say(f"wrote {own}")
        for name, content in files.items():
            (folder / name).write_text(content, "utf-8")
            say(f"wrote {folder / name}")
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written: {error.strerror}",
            hint="SYNCER_CONFIG names another config folder.",
        ) from error


def _options(name: str) -> str:
    # Elasticsearch accepts no capitals.
    return f"# The alias that searches use. syncer makes the index behind it.\nindex: {name.lower()}\n"


def _text(body: object) -> str:
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"
