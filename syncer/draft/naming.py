"""Naming: what fields and documents of a draft are called, after columns and tables that may be called anything."""

from __future__ import annotations

import re
import unicodedata

_NOT_IN_FIELDS = re.compile(r"[^\w$@ -]")
_NOT_IN_DOCUMENTS = re.compile(r"[^A-Za-z0-9_-]+")
_DOCUMENT_CHARACTERS_MAX = 63


class Names:
    """Names of fields in one object: each is given once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def give(self, wanted: str) -> str:
        """A name that Elasticsearch takes, and that no other field has: the wanted one, if it will do.

        A dot would be a step into an object, and names that begin with an underscore are Elasticsearch's own.
        """
        name = _NOT_IN_FIELDS.sub("_", wanted).strip().lstrip("_") or "column"
        made, number = name, 1
        while made in self._given:
            number += 1
            made = f"{name}_{number}"
        self._given.add(made)
        return made


def document_name(table: str) -> str:
    """What a document is called after its table."""
    plain = unicodedata.normalize("NFKD", table).encode("ascii", "ignore").decode()
    name = _NOT_IN_DOCUMENTS.sub("_", plain).strip("_-")[:_DOCUMENT_CHARACTERS_MAX]
    return name or "document"


def index_name(document: str) -> str:
    """The alias of a document: Elasticsearch takes no capitals."""
    return document.lower()


def of_reference(columns: tuple[str, ...], table: str) -> str:
    """What the row is called that a foreign key leads to: ``user`` after ``user_id``."""
    if len(columns) == 1:
        short = re.sub(r"_?(id|uuid|key|fk)$", "", columns[0], flags=re.IGNORECASE)
        if short and short != columns[0]:
            return short
    return table
