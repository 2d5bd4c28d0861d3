"""Document: drafts and writes its files: select.sql, index.json and document.yaml.

The SELECT shows what a tree of tables says; the mapping is derived from the SELECT. Guarantees: different rows have
different ids; existing files are not written over.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import sql

from syncer.apply.scaffold import field as fields, mapping, naming
from syncer.apply.scaffold.naming import Names
from syncer.apply.scaffold.tree import Branch, Join, Shown
from syncer.base import shipped
from syncer.base.errors import ConfigError
from syncer.base.postgres import Connection
from syncer.documents import definition

_SETTINGS = "syncer.yaml"
_PAIRS_MAX = 50
"""How many fields jsonb_build_object takes at once: a function has at most 100 arguments."""
_KEYWORDS = "SELECT word FROM pg_get_keywords() WHERE catcode <> 'U'"
_FREE_TEXT = frozenset({"text", "bpchar", "json", "enum", "composite", "range", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The files of a draft.

    Args:
        select: None if the file exists, and is kept.
        options: Likewise.
        remarks: What to know of it.
    """

    name: str
    select: str | None
    index: str
    options: str | None
    remarks: tuple[str, ...]


def draft(
    connection: Connection,
    root: Branch,
    *,
    name: str,
    remarks: Sequence[str],
) -> Draft:
    """Draft a document from a tree of tables.

    Args:
        connection: To the database of the tables.
        root: What the document shows.
        name: Its name.
        remarks: What to know of the tree; they begin the SELECT as comments.

    Raises:
        DefinitionError: A table cannot be captured.
    """
    select = _Writer(connection).select(root)
    index, more = mapping.completed(connection, select, name, mapping.EMPTY_BODY)
    notes = [*remarks, *more]
    title = f"Rows of {root.table.relation}, drafted by syncer init. It is yours: change what you like."
    comments = "".join(f"-- {' '.join(one.split())}\n" for one in (title, *notes))
    return Draft(name=name, select=comments + select, index=_text(index), options=_options(name), remarks=tuple(notes))


def from_select(connection: Connection, file: Path, config_folder: Path, name: str) -> Draft:
    """Complete a document whose SELECT is written: its mapping, and what else is missing. What index.json says is kept.

    Raises:
        DefinitionError: The SELECT is refused, or index.json is not valid.
    """
    folder = folder_of(config_folder, name)
    select, index = definition.read_sql(file), folder / "index.json"
    given = definition.read_index_body(index) if index.exists() else mapping.EMPTY_BODY
    body, remarks = mapping.completed(connection, select, str(file), given)
    is_there = (folder / "select.sql").exists() and file.samefile(folder / "select.sql")
    return Draft(
        name=name,
        select=None if is_there else file.read_text("utf-8-sig"),
        index=_text(body),
        options=None if (folder / "document.yaml").exists() else _options(name),
        remarks=tuple(remarks),
    )


def folder_of(config_folder: Path, name: str) -> Path:
    """Return a document's folder."""
    return config_folder / "documents" / name


def require_free(config_folder: Path, name: str) -> None:
    """Refuse a document whose folder is not empty.

    Raises:
        ConfigError: It is not.
    """
    folder = folder_of(config_folder, name)
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty", hint="Name another document with --name, or write over it with --force."
        )


def write(config_folder: Path, draft: Draft) -> list[Path]:
    """Write a draft, and config/syncer.yaml if there is none; return the files that were written.

    Raises:
        ConfigError: A file cannot be written.
    """
    folder = folder_of(config_folder, draft.name)
    files = {"document.yaml": draft.options, "select.sql": draft.select, "index.json": draft.index}
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings = config_folder / _SETTINGS
        if not settings.exists():
            shutil.copyfile(shipped.folder("config") / _SETTINGS, settings)
            written.append(settings)
        for name, content in files.items():
            if content is not None:
                (folder / name).write_text(content, "utf-8")
                written.append(folder / name)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written: {error.strerror}",
            hint="SYNCER_CONFIG names another config folder.",
        ) from error
    return written


def _text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def _options(name: str) -> str:
    return f"# The alias that searches use. syncer makes the index behind it.\nindex: {naming.index_name(name)}\n"


class _Writer:
    """Writes a tree as a SELECT."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._words = frozenset(word for (word,) in connection.execute(_KEYWORDS))
        self._aliases = Names()

    def select(self, root: Branch) -> str:
        alias = self._alias(root.table.name)
        lines = [sql.SQL("    {} AS _id").format(self._id(root, alias))]
        for name, expression in self._fields(root, alias, "\n    "):
            is_column = expression == self._name(alias, name)
            line = sql.SQL("    {}" if is_column else "    {} AS {}")
            lines.append(line.format(expression, *(() if is_column else (self._name(name),))))
        body, table = sql.SQL(",\n").join(lines), sql.SQL(root.table.relation)
        return sql.SQL("SELECT\n{}\nFROM {} AS {}\n").format(body, table, self._name(alias)).as_string(self._connection)

    def _fields(self, branch: Branch, alias: str, line: str) -> list[tuple[str, sql.Composable]]:
        """Return the fields of a table's rows: their own, and what the tables below show."""
        own = [(one.name, self._shown(branch, one, alias)) for one in branch.shown]
        return [*own, *((one.name, self._below(one, alias, line)) for one in branch.children)]

    def _shown(self, branch: Branch, one: Shown, alias: str) -> sql.Composable:
        return fields.expression(branch.table.column(one.column), self._name(alias, one.column))

    def _below(self, branch: Branch, outer: str, line: str) -> sql.Composable:
        """Return the rows of a table as an object or an array."""
        aliases = [self._alias(one.table.name) for one in branch.joins]
        inside = self._fields(branch, aliases[-1], line + "        ")
        shown = _object(inside, line + "    ")
        if branch.is_array:
            order = sql.SQL(", ").join(self._name(aliases[-1], one) for one in branch.table.key)
            shown = sql.SQL("coalesce(jsonb_agg({} ORDER BY {}), '[]'::jsonb)").format(shown, order)
        before, clauses = outer, [sql.SQL("SELECT {}").format(shown)]
        for number, (join, alias) in enumerate(zip(branch.joins, aliases, strict=True)):
            clause = sql.SQL("JOIN {} AS {} ON {}" if number else "FROM {} AS {}")
            equal = [self._equal(join, alias, before)] if number else []
            clauses.append(clause.format(sql.SQL(join.table.relation), self._name(alias), *equal))
            before = alias
        clauses.append(sql.SQL("WHERE {}").format(self._equal(branch.joins[0], aliases[0], outer)))
        inner = line + "    "
        return sql.SQL("({}{}{})").format(sql.SQL(inner), sql.SQL(inner).join(clauses), sql.SQL(line))

    def _equal(self, join: Join, alias: str, before: str) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(self._name(alias, own), self._name(before, other)) for other, own in join.pairs
        )

    def _alias(self, table: str) -> str:
        initial = table[:1].lower()
        return self._aliases.give(initial if initial.isascii() and initial.isalpha() else "t")

    def _name(self, *names: str) -> sql.Composable:
        """An identifier, quoted where Postgres would quote it."""
        plain = [
            one if one.isascii() and one.isidentifier() and one == one.lower() and one not in self._words else None
            for one in names
        ]
        return sql.SQL(".").join(
            sql.SQL(known) if known else sql.Identifier(one) for known, one in zip(plain, names, strict=True)
        )

    def _id(self, root: Branch, alias: str) -> sql.Composable:
        key = [(self._name(alias, one), root.table.column(one).type) for one in root.table.key]
        if len(key) == 1:
            return sql.SQL("{}::text").format(key[0][0]) if key[0][1].kind == "bpchar" else key[0][0]
        free = [name for name, type_ in key if type_.kind in _FREE_TEXT or type_.is_array]
        parts: list[sql.Composable] = []
        for name, _ in key:
            # A text may contain a colon: the length before it keeps ids of different keys different.
            if len(free) > 1 and name in free:
                parts.append(sql.SQL("length({}::text)::text").format(name))
            parts.append(sql.SQL("{}::text").format(name))
        return sql.SQL(" || ':' || ").join(parts)


def _object(inside: Sequence[tuple[str, sql.Composable]], line: str) -> sql.Composable:
    """Return an expression for an object of these fields; ``line`` begins a line."""
    begin = line + "    "
    inner, end = sql.SQL(begin), sql.SQL(line)
    pieces = [inside[place : place + _PAIRS_MAX] for place in range(0, len(inside), _PAIRS_MAX)] or [[]]
    pairs = [[sql.SQL("{}{}, {}").format(inner, sql.Literal(name), one) for name, one in some] for some in pieces]
    return sql.SQL(" || ").join(
        sql.SQL("jsonb_build_object({}{})").format(sql.SQL(",").join(some), end) for some in pairs
    )
