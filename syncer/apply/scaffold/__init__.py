"""Drafts a document's folder for `syncer init`: select.sql, index.json and document.yaml, never over existing files.

table    a table, what it refers to, and the tables that refer to it → a SELECT and its mapping
mapping  the columns of any SELECT → a mapping, keeping what exists
"""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from syncer.apply.scaffold import mapping
from syncer.apply.scaffold.table import Drafter, find
from syncer.base.errors import ConfigError
from syncer.base.postgres import Connection
from syncer.base.settings import shipped
from syncer.documents import definition

_SETTINGS = "syncer.yaml"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARACTERS_MAX = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The files of a draft, by name, the folder for them, and what to know of it."""

    folder: Path
    files: dict[str, str]
    remarks: tuple[str, ...]


def from_table(
    connection: Connection,
    config_folder: Path,
    table: str,
    name: str | None,
    *,
    referring: Sequence[str],
    force: bool,
) -> Draft:
    """Draft a document from a table, named after it by default: see `syncer.apply.scaffold.table`.

    Raises:
        ConfigError: The folder is not empty, and existing files are not to be written over (``force``).
        SourceError: There is no such table, or it cannot be read.
        DefinitionError: A table cannot be captured, or does not refer to the other.
    """
    found = find(connection, table)
    folder = _folder(config_folder, name or found.name, force=force)
    drafter = Drafter(connection)
    query, properties = drafter.select(found, referring)
    given = {**mapping.EMPTY_BODY, "mappings": {"dynamic": "strict", "properties": properties}}
    body, more = mapping.completed(connection, query, folder.name, given)
    remarks = [*drafter.remarks, *more]
    title = f"Rows of {found.relation}, drafted by syncer init. It is yours: change what you like."
    comments = "".join(f"-- {' '.join(line.split())}\n" for line in (title, *remarks))
    files = {"document.yaml": _options(folder), "select.sql": comments + query, "index.json": _text(body)}
    return Draft(folder=folder, files=files, remarks=tuple(remarks))


def from_select(connection: Connection, config_folder: Path, file: Path, name: str | None, *, force: bool) -> Draft:
    """Complete a document whose SELECT is written: its mapping, and what else is missing. What index.json says is kept.

    Raises:
        ConfigError: The file lies elsewhere, and the document's folder is not empty.
        DefinitionError: The SELECT is refused, or index.json is not valid.
    """
    own = file.absolute().parent
    name = name or (own.name if file.name == "select.sql" else file.stem)
    folder = _folder(config_folder, name, force=force, own=own)
    query, index, select_file = definition.read_sql(file), folder / "index.json", folder / "select.sql"
    given = definition.read_index_body(index) if index.exists() else mapping.EMPTY_BODY
    body, remarks = mapping.completed(connection, query, str(file), given)
    files = {"index.json": _text(body)}
    if not (folder / "document.yaml").exists():
        files["document.yaml"] = _options(folder)
    if not (select_file.exists() and file.samefile(select_file)):
        files["select.sql"] = file.read_text("utf-8-sig")
    return Draft(folder=folder, files=files, remarks=tuple(remarks))


def write(config_folder: Path, draft: Draft) -> list[Path]:
    """Write a draft, and config/syncer.yaml if there is none; return the files that were written."""
    settings, written = config_folder / _SETTINGS, []
    try:
        draft.folder.mkdir(parents=True, exist_ok=True)
        if not settings.exists():
            shutil.copyfile(shipped("config") / _SETTINGS, settings)
            written.append(settings)
        for name, content in draft.files.items():
            (draft.folder / name).write_text(content, "utf-8")
            written.append(draft.folder / name)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or draft.folder} cannot be written: {error.strerror}",
            hint="SYNCER_CONFIG names another config folder.",
        ) from error
    return written


def _folder(config_folder: Path, name: str, *, force: bool, own: Path | None = None) -> Path:
    """Return the folder of a document; its name is derived from that of a table or file."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    folder = (
        config_folder / "documents" / (_NOT_IN_NAMES.sub("_", plain).strip("_-")[:_NAME_CHARACTERS_MAX] or "document")
    )
    if not force and folder.absolute() != own and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty", hint="Name another document with --name, or write over it with --force."
        )
    return folder


def _options(folder: Path) -> str:
    # Elasticsearch accepts no capitals.
    return f"# The alias that searches use. syncer makes the index behind it.\nindex: {folder.name.lower()}\n"


def _text(body: object) -> str:
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"
