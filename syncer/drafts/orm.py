"""ORM: makes a document's SELECT of what an ORM or a log prints. What is changed is said; the rest stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from sqlglot import Token, TokenType, tokenize
from sqlglot.errors import TokenError

from syncer.base.errors import DefinitionError
from syncer.drafts.catalogue import without_key
from syncer.drafts.draft import Drafter

_BEFORE = re.compile(r"^.*?(?=\b(?:SELECT|WITH)\b)", re.IGNORECASE | re.DOTALL)
"""What a log prints before a statement."""
_BINDS = re.compile(r"\s*(\[\[.*\]\]|;)\s*$", re.DOTALL)
_ENDS = (TokenType.ORDER_BY, TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH)
_CLAUSES = (TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.WINDOW, *_ENDS)
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)


def with_id(drafter: Drafter, query: str, file: str) -> tuple[str, list[str]]:
    """Return a SELECT with an ``_id``, by the primary key of the table it is FROM, and what was changed.

    Raises:
        DefinitionError: It has placeholders, or reads no table first.
    """
    text = _BINDS.sub("", _BEFORE.sub("", query, count=1))
    changes = [] if text.strip() == query.strip() else ["left out what stands around the SELECT"]
    tokens = _outermost(text, file)
    if any(token.token_type in (TokenType.PARAMETER, TokenType.PLACEHOLDER) for token in tokens) or "%s" in text:
        raise DefinitionError(
            f"{file} has placeholders for parameters",
            hint="Write the values into it, as in: WHERE status = 'published'",
        )
    start = next((at for at, token in enumerate(tokens) if token.token_type == TokenType.SELECT), None)
    source = next((at for at, token in enumerate(tokens) if token.token_type == TokenType.FROM), None)
    if start is None or source is None:
        raise DefinitionError(f"{file} has no SELECT … FROM a table", hint="Add a column _id to it.")
    relation, alias = _source(text, tokens[source + 1 :], file)
    table = drafter.catalogue.find(relation)
    if not table.key:
        raise without_key(table.relation)
    edits: list[tuple[int, int, str]] = []
    if end := next((token for token in tokens[source:] if token.token_type in _ENDS), None):
        edits.append((end.start, len(text), ""))
        cut = " ".join(text[end.start :].split())
        changes.append(f"left out {cut}: it is for one search, not for the documents")
    first = tokens[start + 1]
    is_distinct = first.token_type == TokenType.DISTINCT
    id_ = drafter.id_of(table, alias)
    place = first.end + 1 if is_distinct else tokens[start].end + 1
    edits.append((place, place, f" {id_} AS _id,"))
    changes.append(f"added {id_} AS _id, by the key of {table.relation}")
    taken: set[str] = set()
    for names in _items(tokens[start + 1 : source]):
        name = names[-1].text
        if names[-1].token_type == TokenType.STAR:
            taken |= table.columns.keys() if names[0].text == alias else set()
            continue
        if name in taken and len(names) > 1:
            renamed = f"{names[-2].text}_{name}"
            edits.append((names[-1].end + 1, names[-1].end + 1, f' AS "{renamed}"'))
            changes.append(f"named the second {name} {renamed}")
        taken.add(name)
    for begin, stop, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[stop:]
    return text.strip() + "\n", changes


def _outermost(text: str, file: str) -> list[Token]:
    """Return the tokens that stand in no parentheses."""
    depth, tokens = 0, []
    try:
        found = tokenize(text, read="postgres")
    except TokenError as error:
        raise DefinitionError(f"{file} cannot be read: {error}", hint="It must be one SELECT.") from error
    for token in found:
        depth -= token.token_type == TokenType.R_PAREN
        if depth == 0:
            tokens.append(token)
        depth += token.token_type == TokenType.L_PAREN
    return tokens


def _source(text: str, tokens: list[Token], file: str) -> tuple[str, str]:
    """Return the table that follows FROM, as it is written, and the name that its columns have in front."""
    words = list(_words(tokens))
    if not words:
        raise DefinitionError(
            f"{file} reads no table first, of whose key an _id could be made", hint="Add a column _id."
        )
    end = 1
    while end + 1 < len(words) and words[end].token_type == TokenType.DOT:
        end += 2
    relation = text[words[0].start : words[end - 1].end + 1]
    after = [word for word in words[end:] if word.token_type != TokenType.ALIAS]
    alias = after[0] if after and after[0].token_type in _NAMES else words[end - 1]
    return relation, alias.text


def _words(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        if token.token_type not in (*_NAMES, TokenType.DOT, TokenType.ALIAS) and not token.text.isidentifier():
            return
        if token.token_type in (*_CLAUSES, TokenType.JOIN, TokenType.LEFT, TokenType.INNER, TokenType.CROSS):
            return
        yield token


def _items(tokens: list[Token]) -> Iterator[list[Token]]:
    """Yield the last names of each item of a SELECT: its column, or its alias."""
    commas = [-1, *(at for at, token in enumerate(tokens) if token.token_type == TokenType.COMMA), len(tokens)]
    for before, after in pairwise(commas):
        item = tokens[before + 1 : after]
        if item:
            is_named = any(token.token_type == TokenType.ALIAS for token in item)
            yield item[-1:] if is_named else [token for token in item if token.token_type != TokenType.DOT]
