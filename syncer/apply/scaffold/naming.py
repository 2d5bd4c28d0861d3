"""Naming: names of fields and documents of a draft, derived from columns and tables with any name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_NOT_IN_FIELDS = re.compile(r"[^\w$@ -]")
_NOT_IN_DOCUMENTS = re.compile(r"[^A-Za-z0-9_-]+")
_DOCUMENT_CHARACTERS_MAX = 63
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PERSONAL = re.compile(
    r"(?:^|_)(passw(or)?d|pwd|pass(phrase|code)|secrets?|tokens?|(api|private|access)_?key|salt|totp|otp|pin|cvv|cvc"
    r"|e_?mails?|phones?|mobile|fax|msisdn|ssn|iban|passport|tax_id|national_id|card_?number|salary"
    r"|gender|religion|ethnicity|(ip|remote)_addr(ess)?)(?:_|$)"
)
_BIRTH = re.compile(r"(?:^|_)(birth|birthday|birthdate|born|dob)(?:_|$)")
_STATES = frozenset({"bool", "date", "timestamp", "timestamptz"})


class Names:
    """Names of fields in one object; each is given out once."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._given = set(given)

    def give(self, wanted: str) -> str:
        """Return a name that Elasticsearch accepts and no other field has: the wanted one, if possible.

        A dot would be a step into an object, and Elasticsearch reserves names that begin with an underscore.
        """
        name = _NOT_IN_FIELDS.sub("_", wanted).strip().lstrip("_") or "column"
        made, number = name, 1
        while made in self._given:
            number += 1
            made = f"{name}_{number}"
        self._given.add(made)
        return made


def is_personal(name: str, kind: str) -> bool:
    """Whether a column or field looks like a secret or personal data, by its name and kind of type.

    When a password was changed, or whether an address is confirmed, is neither.
    """
    words = "_".join(_WORDS.findall(name)).lower()
    if _BIRTH.search(words):
        return True
    return kind not in _STATES and _PERSONAL.search(words) is not None


def document_name(table: str) -> str:
    """Return a document's name, derived from its table's."""
    plain = unicodedata.normalize("NFKD", table).encode("ascii", "ignore").decode()
    name = _NOT_IN_DOCUMENTS.sub("_", plain).strip("_-")[:_DOCUMENT_CHARACTERS_MAX]
    return name or "document"


def index_name(document: str) -> str:
    """Return a document's alias: Elasticsearch accepts no capitals."""
    return document.lower()


def of_reference(columns: tuple[str, ...], table: str) -> str:
    """Return a name for the row that a foreign key refers to: ``user`` for ``user_id``, ``area`` for ``area``."""
    short = re.sub(r"_?(id|uuid|key|fk)$", "", columns[0], flags=re.IGNORECASE)
    return short if short and len(columns) == 1 else table
