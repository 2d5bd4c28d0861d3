"""Reads a document's folder and checks all that can be checked without a server; a `DefinitionError` names the file.

    config/documents/<name>/document.yaml        index: the search alias
                            select.sql           one SELECT; column _id is the document's id, _routing its routing
                            index.json           Elasticsearch settings and mappings
                            affects/<table>.sql  which documents a change of that table affects

`syncer.documents.analyze` asks Postgres what the SELECT reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from syncer.base.errors import DefinitionError
from syncer.elasticsearch import indices, shortcomings
from syncer.elasticsearch.shortcomings import Effect

# The characters that Elasticsearch allows in an index name, except deprecated ones.
_INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_DOCUMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_BODY_HINT = 'As in: {"settings": {"number_of_shards": 1}, "mappings": {"properties": {"title": {"type": "text"}}}}'
_MAPPING_HINT = 'As in: "properties": {"title": {"type": "text", "fields": {"exact": {"type": "keyword"}}}}'
_LEVELS_MAX = 100
"""How deep an index.json may be nested; Elasticsearch takes 20 levels of fields, unless it is set."""
_OPTIONS_HINT = "Name the search alias, as in: index: blogpost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A document as its folder describes it: its search alias, its SELECT without a closing semicolon, and so on.

    The ``index_body`` is for Elasticsearch's create index API. Affects queries are known by the name of their table.
    """

    name: str
    index: str
    select: str
    index_body: dict[str, Any]
    affects: dict[str, str]
    folder: Path


def require_folder(config_folder: Path, name: str) -> None:
    """Refuse a document without a folder."""
    names = [folder.name for folder in folders(config_folder)]
    if name not in names:
        raise DefinitionError(f"There is no document {name} in {config_folder}", hint=f"There are: {', '.join(names)}")


def folders(config_folder: Path, *, may_be_none: bool = False) -> list[Path]:
    """Return every document's folder, sorted by name.

    There may be none if ``may_be_none`` is set, as when the last document is removed.
    """
    parent = config_folder / "documents"
    folders = sorted(path for path in parent.glob("*") if path.is_dir()) if parent.is_dir() else []
    if not folders and not may_be_none:
        raise DefinitionError(
            f"There is no document in {parent}",
            hint="A document is a folder with document.yaml, select.sql and index.json.\n"
            "SYNCER_CONFIG names another config folder.",
        )
    return folders


def is_name(name: str) -> bool:
    """Whether this is a valid name for a document."""
    return _DOCUMENT_NAME.fullmatch(name) is not None


def load(folder: Path) -> Definition:
    """Read one document's folder."""
    if not is_name(folder.name):
        raise DefinitionError(
            f"{folder.name!r} is not a name for a document",
            hint="Rename the folder: letters, digits, _ and - only, at most 63 of them.",
        )
    for path in folder.iterdir():
        if path.is_dir() and path.suffix == "" and path.name != "affects":
            raise DefinitionError(
                f"{path} is no folder that a document has", hint="Only affects is allowed. Rename or remove it."
            )
    return Definition(
        name=folder.name,
        index=_read_index_name(folder / "document.yaml"),
        select=read_sql(folder / "select.sql"),
        index_body=read_index_body(folder / "index.json"),
        affects={file.stem: _read_affects(file) for file in sorted(folder.glob("affects/*.sql"))},
        folder=folder,
    )


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DefinitionError(f"{file} is missing", hint="Every document needs this file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{file} cannot be read: {error}") from error


def _read_index_name(file: Path) -> str:
    try:
        loaded = yaml.safe_load(_read_text(file))
    except yaml.YAMLError as error:
        raise DefinitionError(f"{file} is not valid YAML: {error}", hint=_OPTIONS_HINT) from error
    except RecursionError:
        raise DefinitionError(f"{file} is nested too deeply", hint=_OPTIONS_HINT) from None
    if not isinstance(loaded, dict) or "index" not in loaded:
        raise DefinitionError(f"{file} does not name an index", hint=_OPTIONS_HINT)
    if unknown := ", ".join(str(key) for key in loaded if key != "index"):
        raise DefinitionError(f"{file}: {unknown} is no option", hint=_OPTIONS_HINT)
    index = loaded["index"]
    if not isinstance(index, str) or not _INDEX_NAME.fullmatch(index):
        shown = f"{index[:210]!r}" if isinstance(index, str) else f"a {type(index).__name__}"  # it may expand aliases
        raise DefinitionError(
            f"{file}: index: {shown} is not a name for an index: lower case letters, digits, _ . - only",
            hint=_OPTIONS_HINT,
        )
    return index


def read_sql(file: Path) -> str:
    """Read a select.sql."""
    sql = _read_text(file).strip().removesuffix(";").rstrip()
    if not sql:
        raise DefinitionError(f"{file} is empty", hint="Write one SELECT into it.")
    return sql


def _read_affects(file: Path) -> str:
    sql = read_sql(file)
    if "%(rows)s" not in sql:
        raise DefinitionError(
            f"{file} does not mention %(rows)s",
            hint=f"It stands for the changed rows of {file.stem}, as in: FROM posts AS p JOIN %(rows)s AS changed ON …",
        )
    return sql


def read_index_body(file: Path) -> dict[str, Any]:
    """Read an index.json."""
    try:
        body = json.loads(_read_text(file))
    except json.JSONDecodeError as error:
        raise DefinitionError(f"{file} is not valid JSON: {error}", hint=_BODY_HINT) from error
    except RecursionError:
        body = None
    if body is None or _is_deeper(body, _LEVELS_MAX):
        raise DefinitionError(f"{file} is no object, or has more than {_LEVELS_MAX} levels", hint=_BODY_HINT)
    unknown = sorted(body.keys() - {"settings", "mappings"}) if isinstance(body, dict) else []
    if not isinstance(body, dict) or unknown:
        raise DefinitionError(
            f"{file} must be an object with only settings and mappings"
            + (f": {', '.join(unknown)} is neither" if unknown else ""),
            hint="Aliases are managed by syncer: document.yaml names the search alias.",
        )
    for name, section in body.items():
        if not isinstance(section, dict):
            raise DefinitionError(f"{file}: {name} must be an object", hint=_BODY_HINT)
    _require_objects(file, body.get("mappings", {}), "mappings")
    flat = {"settings": indices.flat_settings(body.get("settings", {})), "mappings": body.get("mappings", {})}
    for shortcoming in shortcomings.of_index("the index", flat):
        if shortcoming.effect is not Effect.ENDANGERS:
            raise DefinitionError(f"{file}: {shortcoming.problem}", hint=f"Remove it from {file.name}.")
    return body


def _is_deeper(body: Any, levels: int) -> bool:
    values = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return any(levels == 0 or _is_deeper(value, levels - 1) for value in values)


def _require_objects(file: Path, mapping: Mapping[str, Any], path: str) -> None:
    """Refuse a mapping in which a field or multi-field is not an object."""
    for kind in ("properties", "fields"):
        fields = mapping.get(kind, {})
        if not isinstance(fields, dict):
            raise DefinitionError(f"{file}: {path}.{kind} must be an object", hint=_MAPPING_HINT)
        for name, field in fields.items():
            if not isinstance(field, dict):
                raise DefinitionError(f"{file}: {path}.{kind}.{name} must be an object", hint=_MAPPING_HINT)
            _require_objects(file, field, f"{path}.{kind}.{name}")


def require_own_index(chosen: Definition, definitions: Iterable[Definition]) -> None:
    """Refuse a document that shares its index with another."""
    for definition in definitions:
        if definition.index == chosen.index and definition.name != chosen.name:
            raise DefinitionError(
                f"Documents {chosen.name} and {definition.name} share the index {chosen.index}",
                hint="Give each document an index of its own in its document.yaml.",
            )
