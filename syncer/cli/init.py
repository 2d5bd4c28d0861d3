"""The command ``syncer init``: draft a document from a table or a SELECT, over existing files only with --force."""

from __future__ import annotations

import difflib
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import elasticsearch
import psycopg
import typer
from psycopg import sql

from syncer.base import postgres, settings
from syncer.base.error_policy import explain
from syncer.base.errors import ConfigError, DefinitionError, IndexingError
from syncer.base.postgres import Connection
from syncer.base.settings import ElasticsearchSettings, shipped
from syncer.cli.context import UsageError, flag, load_settings
from syncer.cli.render import say
from syncer.documents import definition
from syncer.drafts import mapping
from syncer.drafts.catalogue import Catalogue
from syncer.drafts.draft import Drafter
from syncer.elasticsearch import client as search

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARACTERS_MAX = 63
_SERVER_TIMEOUT_SECONDS = 5.0


def init(
    *,
    table: Annotated[str | None, typer.Option(help="Table whose rows become documents.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the document (default: the table's name).")] = None,
    referring: Annotated[
        list[str] | None,
        typer.Option("--with", help="Add the rows of a table, or of a path of tables; can be repeated."),
    ] = None,
    from_select: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Derive the mapping of the SELECT in this file; keep what index.json says.",
        ),
    ] = None,
    columns: Annotated[bool, flag("--columns", text="Take all columns of --table, and of what it shows.")] = False,
    force: Annotated[bool, flag("--force", text="Overwrite existing files of the document.")] = False,
) -> None:
    """Draft a document from a table or a SELECT.

    Writes a SELECT and a mapping to the config folder. Without an option, lists the tables.
    Columns become fields of a matching type, and rows referenced by foreign keys, or by names such
    as user_id, become objects of their key and name. The option --with adds, at any depth
    (comments.reactions), a table that references it as an array, the rows behind a link table, or
    more columns of a referenced row. Where two foreign keys lead to a table, a column chooses one:
    matches:home_id. Deleted rows, drafts, bookkeeping, personal data and secrets are left out, and
    reported. Does not change the database.

    --from-select derives the mapping from the types that a SELECT returns, also inside JSON.
    The file is a document's select.sql, or any other one, such as what an ORM prints: an _id is
    added, and the result copied. Run it again after you have changed the SELECT: it adds what
    index.json lacks, and changes nothing else. A sample decides only for JSON in columns.

    The types are those of OpenSearch if it answers at elasticsearch.url, else of Elasticsearch.

    If the document exists, --table shows how a new draft differs. Overwrites existing files only
    with --force, and never config/syncer.yaml.
    """
    loaded = load_settings()
    if name is not None and not definition.is_name(name):
        raise UsageError(f"{name!r} is not a valid document name. Use at most 63 letters, digits, _ and -.")
    if table and from_select:
        raise UsageError("--table and --from-select cannot be combined. Run init once for each.")
    if table is None and (referring or columns):
        raise UsageError("--with and --columns are for a draft of a table. Name it with --table.")
    with postgres.connect(loaded.postgres, name="init") as connection:
        server, trouble = _search_server(loaded.elasticsearch)
        is_for_opensearch = server is search.OPENSEARCH
        drafter = Drafter(Catalogue(connection), has_all_columns=columns, is_for_opensearch=is_for_opensearch)
        if from_select is not None:
            select_folder = from_select.absolute().parent
            folder = _folder(name or (select_folder.name if from_select.name == "select.sql" else from_select.stem))
            if not force and folder.absolute() != select_folder and folder.is_dir() and any(folder.iterdir()):
                raise ConfigError(
                    f"{folder} is not empty", hint="Name another document with --name, or write over it with --force."
                )
            files, remarks = _of_select(drafter, folder, from_select)
        elif table is not None:
            folder = _folder(name or drafter.catalogue.find(table).name)
            files, remarks = _of_table(drafter, folder.name, table, referring or ())
            if not force and (folder / "select.sql").exists():
                _show_difference(folder, files["select.sql"])  # first: the SELECT that there is may no longer fit
                files, remarks = _of_select(drafter, folder, folder / "select.sql")
        else:
            if not drafter.catalogue.readable:
                raise UsageError("The role can read no table. Check postgres.dsn, or run GRANT SELECT as their owner.")
            say("\n".join(drafter.catalogue.readable))
            return
    _write(folder, files)
    for remark in [*remarks, *trouble]:
        say(f"  {remark}", style="dim")
    say("Review the files, then run: syncer migrate, syncer plan, syncer apply, syncer run")


def _folder(name: str) -> Path:
    """Return the folder of a document; its name may be that of a table or file."""
    plain = _NOT_IN_NAMES.sub("_", name).strip("_-")[:_NAME_CHARACTERS_MAX] or "document"
    return settings.config_folder() / "documents" / plain


def _show_difference(folder: Path, draft: str) -> None:
    """Show how a new draft differs from the select.sql that there is, which is kept."""
    file = folder / "select.sql"
    current_lines = file.read_text("utf-8-sig").splitlines()
    lines = difflib.unified_diff(current_lines, draft.splitlines(), lineterm="", n=1)
    changes = [line for line in lines if not line.startswith(("---", "+++"))]
    title = f"{file} is kept. A new draft differs (--force writes over it):" if changes else f"{file} is a fresh draft"
    for line in (title, *changes):
        say(f"  {line}", style="dim")


def _search_server(settings: ElasticsearchSettings) -> tuple[search.Product, list[str]]:
    """Return which server answers, and if it cannot be asked, what to know: a draft needs none."""
    try:
        with search.connect(settings, timeout_seconds=_SERVER_TIMEOUT_SECONDS) as client:
            return search.product(client), []
    except (IndexingError, elasticsearch.ApiError, elasticsearch.TransportError) as error:
        explained = explain(error)
        problem = explained.message if explained else str(error)
        remark = f"types are those of Elasticsearch, since the search server could not be asked: {problem}"
        return search.ELASTICSEARCH, [remark]


def _of_table(drafter: Drafter, name: str, table: str, asked: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Draft the files of a document of a table's rows, and say what to know of it."""
    root = drafter.catalogue.find(table)
    query = drafter.select(root, asked)
    body, _, of_fields = mapping.completed(drafter, query, name, mapping.EMPTY_BODY)
    remarks = [*drafter.remarks, *of_fields]
    title = f"Rows of {root.relation}, drafted by syncer init. It is yours: change what you like."
    comments = "".join(f"-- {' '.join(line.split())}\n" for line in (title, *remarks))
    return {"document.yaml": _options(name), "select.sql": comments + query, "index.json": _text(body)}, remarks


def _of_select(drafter: Drafter, folder: Path, file: Path) -> tuple[dict[str, str], list[str]]:
    """Return the mapping of a written SELECT, and what else its document lacks. What index.json says is kept."""
    query, index, select_file = definition.read_sql(file), folder / "index.json", folder / "select.sql"
    is_own = select_file.exists() and file.samefile(select_file)
    text, changes = file.read_text("utf-8-sig"), list[str]()
    if not _has_id(drafter.catalogue.connection, query):
        from syncer.drafts import orm  # noqa: PLC0415 - it imports sqlglot, which is slow to load

        text, changes = orm.with_id(drafter, query, str(file))
        if is_own:
            raise DefinitionError(f"{file} has no column _id", hint=f"As in:\n{text}")
        query = text
    body = definition.read_index_body(index) if index.exists() else mapping.EMPTY_BODY
    body, has_more, remarks = mapping.completed(drafter, query, str(file), body)
    files, remarks = {"index.json": _text(body)}, [*changes, *remarks]
    if not has_more and index.exists():
        files, remarks = {}, [*changes, f"Nothing to add: {index} maps every field of the SELECT"]
    if not (folder / "document.yaml").exists():
        files["document.yaml"] = _options(folder.name)
    if not is_own:
        files["select.sql"] = text
    return files, remarks


def _has_id(connection: Connection, query: str) -> bool:
    if re.search(r"(?<!\w)_id\b", query):
        return True
    with suppress(psycopg.Error), connection.transaction(force_rollback=True):
        described = connection.execute(sql.SQL("SELECT * FROM ({}) AS d LIMIT 0").format(sql.SQL(query)))
        return any(column.name == "_id" for column in described.description or ())
    return False


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write the files of a draft, and config/syncer.yaml if there is none."""
    settings_file = settings.config_folder() / "syncer.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not settings_file.exists():
            shutil.copyfile(shipped("config") / "syncer.template.yaml", settings_file)
            say(f"wrote {settings_file}")
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
