"""ORM: makes a document's SELECT of what an ORM or a log prints, and says what it changed."""

from __future__ import annotations

import re

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from syncer.base.errors import DefinitionError
from syncer.drafts.draft import Drafter

_BEGINS, _COMMENTS = r"(?:SELECT|WITH)\b", r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_AROUND = re.compile(
    rf"\A(?!{_COMMENTS}{_BEGINS}).*?(?=\b{_BEGINS})|\s*(?:\[\[.*\]\]|;)\s*\Z", re.IGNORECASE | re.DOTALL
)
"""What a log prints before a statement, which a comment is not, and the values of its parameters after it."""


def with_id(drafter: Drafter, query: str, file: str) -> tuple[str, list[str]]:
    """Return a SELECT with an ``_id``, by the primary key of the table it is FROM, and what was changed.

    Raises:
        DefinitionError: It has placeholders, or reads no table first.
    """
    text = _AROUND.sub("", query)
    changes = [] if text.strip() == query.strip() else ["left out what stands around the SELECT"]
    try:
        select = parse_one(text, read="postgres")
    except SqlglotError as error:
        raise DefinitionError(f"{file} cannot be read: {error}", hint="It must be one SELECT.") from error
    if select.find(exp.Parameter, exp.Placeholder):
        raise DefinitionError(
            f"{file} has placeholders for parameters",
            hint="Write the values into it, as in: WHERE status = 'published'",
        )
    source = select.args.get("from_") if isinstance(select, exp.Select) else None
    if source is None or not isinstance(source.this, exp.Table):
        raise DefinitionError(
            f"{file} reads no table first, of whose key an _id could be made", hint="Add a column _id."
        )
    relation = source.this.copy()
    relation.set("alias", None)
    table = drafter.catalogue.find(relation.sql("postgres"))
    table.require_key()
    searched = [
        select.args[name].pop().sql("postgres") for name in ("order", "limit", "offset") if select.args.get(name)
    ]
    if searched:
        changes.append(f"left out {' '.join(searched)}: it is for one search, not for the documents")
    id_ = drafter.id_of(table, source.alias_or_name)
    changes.append(f"added {id_} AS _id, by the key of {table.relation}")
    names, columns = set[str](), [parse_one(f"{id_} AS _id", read="postgres")]
    for column in select.expressions:
        name = column.output_name
        if column.is_star:
            names |= table.columns.keys() if getattr(column, "table", "") in ("", source.alias_or_name) else set()
        elif name in names and isinstance(column, exp.Column) and column.table:
            changes.append(f"named the second {name} {column.table}_{name}")
            column = exp.alias_(column, f"{column.table}_{name}", quoted=True)  # noqa: PLW2901 - the same column
        names.add(name)
        columns.append(column)
    select.set("expressions", columns)
    return select.sql("postgres", pretty=True) + "\n", changes
