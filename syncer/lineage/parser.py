"""The parser: turns a canonical query into a tree, also where it uses syntax that sqlglot does not know.

A call that sqlglot cannot read, such as ``JSON_TABLE(…)`` or ``XMLSERIALIZE(…)``, is replaced by one of an unknown
function with the same columns as its arguments. Nothing follows from an unknown function, so that no edge is derived
from it. The tables of a subquery inside it are missing from the tree, and need an affects query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError, SqlglotError

from syncer.base.formatting import shortened

_UNKNOWN = "syncer_unknown"
_REPLACED_MAX = 200
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)


class UnreadableError(Exception):
    """A query cannot be parsed; the message is the place in it."""


@lru_cache(maxsize=32)
def parsed(query: str) -> exp.Query:
    """Parse a canonical query. The tree is shared by all callers.

    Raises:
        UnreadableError: It has syntax that is not understood and is not inside a call.
    """
    for _ in range(_REPLACED_MAX):
        tokens = sqlglot.tokenize(query, read="postgres")
        replaced = _simplified(query, tokens)
        if replaced is not None:
            query = replaced
            continue
        try:
            tree = sqlglot.parse_one(query, read="postgres")
        except ParseError as error:
            query = _without_call(query, tokens, error)
        except (SqlglotError, RecursionError) as error:
            raise UnreadableError(str(shortened(query))) from error
        else:
            if not isinstance(tree, exp.Query):
                raise UnreadableError(str(shortened(query)))
            return tree
    raise UnreadableError(str(shortened(query)))


def _simplified(query: str, tokens: Sequence[Token]) -> str | None:
    """Leave out one WITH ORDINALITY, or make a plain call of a ROWS FROM (…) or a (unnest(…); None if there is none."""
    for token, following in pairwise(tokens):
        match token.text.upper(), following.text.upper():
            case "WITH", "ORDINALITY":
                return query[: token.start] + query[following.end + 1 :]
            case "ROWS", "FROM":
                return f"{query[: token.start]}{_UNKNOWN}{query[following.end + 1 :]}"
            case "(", "UNNEST":
                return f"{query[: following.start]}{_UNKNOWN}{query[following.end + 1 :]}"
    return None


def _without_call(query: str, tokens: Sequence[Token], error: ParseError) -> str:
    """Replace the innermost call around the place that was not understood."""
    details = error.errors[0]
    culprit = next((t for t in tokens if (t.line, t.col) == (details["line"], details["col"])), tokens[-1])
    calls = [call for call in _calls(tokens) if call[0].start <= culprit.start <= call[1].end]
    if not calls:
        context = f"{str(details['start_context'])[-40:]}{details['highlight']}{str(details['end_context'])[:40]}"
        raise UnreadableError(" ".join(context.split())) from error
    name, closing = max(calls, key=lambda call: call[0].start)
    inside = [token for token in tokens if name.start < token.start < closing.start]
    return f"{query[: name.start]}{_UNKNOWN}({', '.join(_columns(inside))}){query[closing.end + 1 :]}"


def _calls(tokens: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    """Yield the name and the closing parenthesis of each call."""
    names: list[Token] = []
    """What precedes each parenthesis that is open."""
    for preceding, token in pairwise(tokens):
        if token.token_type is TokenType.L_PAREN:
            names.append(preceding)
        elif token.token_type is TokenType.R_PAREN and names:
            name = names.pop()
            is_name = name.token_type in _NAMES or name.text.upper().startswith(("JSON", "XML"))
            if is_name and name.text != _UNKNOWN:
                yield name, token


def _columns(tokens: Sequence[Token]) -> list[str]:
    """Return the qualified columns in a part of a canonical query, whole rows included."""
    columns: dict[str, None] = {}
    for table, dot, column in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_column = column.token_type is TokenType.STAR or column.token_type in _NAMES
        if table.token_type in _NAMES and dot.token_type is TokenType.DOT and is_column:
            name = "*" if column.token_type is TokenType.STAR else exp.to_identifier(column.text, quoted=True).sql()
            columns[f"{exp.to_identifier(table.text, quoted=True).sql()}.{name}"] = None
    return list(columns)
