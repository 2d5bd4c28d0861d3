"""A document's folder, read and checked as far as that goes without a server.

    config/documents/<name>/document.yaml        index: the alias that searches use
                            select.sql           one SELECT; column _id is the document's id, _routing its routing
                            index.json           Elasticsearch settings and mappings
                            affects/<table>.sql  which documents a change of that table touches

What the SELECT reads is the business of `syncer.dependency`, which asks Postgres.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from syncer.errors import DefinitionError

# What Elasticsearch allows in the name of an index, less what it merely deprecates.
_INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_DOCUMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_BODY_HINT = 'As in: {"settings": {"number_of_shards": 1}, "mappings": {"properties": {"title": {"type": "text"}}}}'
_MAPPING_HINT = 'As in: "properties": {"title": {"type": "text", "fields": {"exact": {"type": "keyword"}}}}'
_OPTIONS_HINT = "It names the alias that searches use, as in: index: blogpost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A document as its folder describes it.

    Args:
        name: The folder's name.
        index: The alias that searches use.
        select: The SELECT, without a closing semicolon.
        index_body: ``settings`` and ``mappings`` as Elasticsearch's create index API takes them.
        affects: For each table that has one, the query that says which documents its changed rows touch.
        folder: Where it was read.
    """

    name: str
    index: str
    select: str
    index_body: dict[str, Any]
    affects: dict[str, str]
    folder: Path


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    index: str

    @field_validator("index")
    @classmethod
    def _is_index_name(cls, index: str) -> str:
        if not _INDEX_NAME.fullmatch(index):
            raise ValueError(f"{index!r} is not a name for an index: lower case letters, digits, _ . - only")
        return index


def load_all(config_folder: Path) -> list[Definition]:
    """Read every document's folder below ``config_folder/documents``, by name.

    Raises:
        DefinitionError: There is none, a folder is not valid, or two documents share an index.
    """
    definitions = [load(folder) for folder in folders(config_folder)]
    require_distinct_indices(definitions)
    return definitions


def folders(config_folder: Path) -> list[Path]:
    """The folder of every document, by name.

    Raises:
        DefinitionError: There is none.
    """
    parent = config_folder / "documents"
    folders = sorted(path for path in parent.glob("*") if path.is_dir()) if parent.is_dir() else []
    if not folders:
        raise DefinitionError(
            f"There is no document in {parent}",
            hint="A document is a folder with document.yaml, select.sql and index.json.\n"
            "SYNCER_CONFIG names another config folder.",
        )
    return folders


def is_name(name: str) -> bool:
    """Whether a document may be called so."""
    return _DOCUMENT_NAME.fullmatch(name) is not None


def load(folder: Path) -> Definition:
    """Read one document's folder.

    Raises:
        DefinitionError: A file is missing or is not what it should be.
    """
    if not is_name(folder.name):
        raise DefinitionError(
            f"{folder.name!r} is not a name for a document",
            hint="Rename the folder: letters, digits, _ and - only, at most 63 of them.",
        )
    for path in folder.iterdir():
        if path.is_dir() and path.suffix == "" and path.name != "affects":
            raise DefinitionError(
                f"{path} is no folder that a document has",
                hint="The only one that it may have is affects. Rename it, or remove it.",
            )
    return Definition(
        name=folder.name,
        index=_read_options(folder / "document.yaml").index,
        select=_read_sql(folder / "select.sql"),
        index_body=_read_index_body(folder / "index.json"),
        affects={file.stem: _read_affects(file) for file in sorted(folder.glob("affects/*.sql"))},
        folder=folder,
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DefinitionError(f"{file} is missing", hint="Every document has this file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{file} cannot be read: {error}") from error


def _read_options(file: Path) -> _Options:
    try:
        loaded = yaml.safe_load(_read(file))
    except yaml.YAMLError as error:
        raise DefinitionError(f"{file} is not valid YAML: {error}", hint=_OPTIONS_HINT) from error
    if not isinstance(loaded, dict):
        raise DefinitionError(f"{file} does not say where the documents go", hint=_OPTIONS_HINT)
    try:
        return _Options.model_validate(loaded)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or 'document'}: "
            + problem["msg"].removeprefix("Value error, ")
            for problem in error.errors(include_url=False)
        )
        raise DefinitionError(f"{file} is not valid: {problems}", hint=_OPTIONS_HINT) from error


def _read_sql(file: Path) -> str:
    sql = _read(file).strip().removesuffix(";").rstrip()
    if not sql:
        raise DefinitionError(f"{file} is empty", hint="Write one SELECT into it.")
    return sql


def _read_affects(file: Path) -> str:
    sql = _read_sql(file)
    if "%(rows)s" not in sql:
        raise DefinitionError(
            f"{file} does not mention %(rows)s",
            hint=f"It stands for the changed rows of {file.stem}, as in: FROM posts AS p JOIN %(rows)s AS changed ON …",
        )
    return sql


def _read_index_body(file: Path) -> dict[str, Any]:
    try:
        body = json.loads(_read(file))
    except json.JSONDecodeError as error:
        raise DefinitionError(f"{file} is not valid JSON: {error}", hint=_BODY_HINT) from error
    unknown = sorted(body.keys() - {"settings", "mappings"}) if isinstance(body, dict) else []
    if not isinstance(body, dict) or unknown:
        raise DefinitionError(
            f"{file} must be an object with settings and mappings, and nothing else"
            + (f": {', '.join(unknown)} is neither" if unknown else ""),
            hint="Aliases are syncer's: document.yaml names the one that searches use.",
        )
    if "gc_deletes" in json.dumps(body.get("settings", {})):
        raise DefinitionError(
            f"{file} sets gc_deletes",
            hint="Leave it out: how long deletes are remembered is part of syncer's protocol.",
        )
    for name, part in body.items():
        if not isinstance(part, dict):
            raise DefinitionError(f"{file}: {name} must be an object", hint=_BODY_HINT)
    _require_objects(file, body.get("mappings", {}), "mappings")
    if str(flat_settings(body.get("settings", {})).get("index.routing_partition_size", 1)) != "1":
        raise DefinitionError(
            f"{file} sets routing_partition_size",
            hint="Leave it out: syncer must know the shard of a document from its _routing alone.",
        )
    return body


def _require_objects(file: Path, mapping: Mapping[str, Any], path: str) -> None:
    """Refuse a mapping in which a field, or a multi-field, is no object."""
    for part in ("properties", "fields"):
        fields = mapping.get(part, {})
        if not isinstance(fields, dict):
            raise DefinitionError(f"{file}: {path}.{part} must be an object", hint=_MAPPING_HINT)
        for name, field in fields.items():
            if not isinstance(field, dict):
                raise DefinitionError(f"{file}: {path}.{part}.{name} must be an object", hint=_MAPPING_HINT)
            _require_objects(file, field, f"{path}.{part}.{name}")


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings of an index by their full names, which begin with ``index.``, however they are nested."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{name}.")
        else:
            flat[f"index.{(prefix + name).removeprefix('index.')}"] = value
    return flat


def require_distinct_indices(definitions: Iterable[Definition]) -> None:
    """Refuse two documents in one index.

    Raises:
        DefinitionError: With both names.
    """
    owner: dict[str, str] = {}
    for definition in definitions:
        other = owner.setdefault(definition.index, definition.name)
        if other != definition.name:
            raise DefinitionError(
                f"Documents {other} and {definition.name} share the index {definition.index}",
                hint="Give each document an index of its own in its document.yaml.",
            )
