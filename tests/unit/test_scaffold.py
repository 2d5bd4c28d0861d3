"""Names that look personal, and mappings guessed from values."""

from __future__ import annotations

from typing import Any

import pytest

from syncer.apply.scaffold import field, guess, naming


@pytest.mark.parametrize(
    "name",
    [
        *("password", "passwordHash", "password_hash", "api_key", "apiKey", "reset_token", "client_secret", "otp"),
        *(
            "email",
            "eMail",
            "customer_email2",
            "phone",
            "mobilePhone",
            "iban",
            "ssn",
            "date_of_birth",
            "birthday",
            "DOB",
        ),
    ],
)
def test_names_that_look_personal(name: str) -> None:
    """In any spelling, as one word of several."""
    assert naming.is_personal(name, "text")


@pytest.mark.parametrize(
    "name", ["title", "passenger", "tokenizer", "mailbox_count", "pinned", "salted", "telephone_box", "key", "reborn"]
)
def test_names_that_only_begin_alike(name: str) -> None:
    """A part of a word says nothing."""
    assert not naming.is_personal(name, "text")


def test_whether_or_when_is_not_personal() -> None:
    """A flag or a time beside the value says nothing of a person; a birth date does."""
    assert not naming.is_personal("email_verified", "bool")
    assert not naming.is_personal("password_changed_at", "timestamptz")
    assert naming.is_personal("born", "date")


@pytest.mark.parametrize(
    ("values", "mapping"),
    [
        ([True, False], {"type": "boolean"}),
        ([1, None, [2, 3]], {"type": "long"}),
        ([1, 2.5], {"type": "double"}),
        ([2**63], {"type": "double"}),
        (["2026-11-21", "2026-11-21T10:00:00Z"], {"type": "date"}),
        (["2026-11-21", "2026-11-21 10:00"], field.TEXT),
        (["2026-02-30"], field.TEXT),
        ([1, "a"], guess.STORED),
        ([{"a": 1}, [1]], guess.STORED),
        ([None], guess.STORED),
        ([{"a": 1}, [{"a": 2}]], {"type": "object", "dynamic": False, "properties": {"a": {"type": "long"}}}),
        ([{str(number): 1 for number in range(51)}], {"type": "object", "dynamic": False}),
        ([{"a.b": 1, "": 2}], {"type": "object", "dynamic": False}),
    ],
)
def test_a_guess_accepts_the_sampled_values(values: list[Any], mapping: dict[str, Any]) -> None:
    """One kind of value decides; mixed ones are stored; keys that are data, or no field names, are not mapped."""
    assert guess.mapping(values) == mapping


def test_a_path_leads_through_arrays() -> None:
    """Values are found in each object of an array, as the arrays that they are."""
    documents: list[dict[str, Any]] = [{"a": [{"b": [1, 2]}, {"b": None}, 3]}, {"a": {"b": [3]}}, {}]
    assert list(guess.at(documents, ("a", "b"))) == [[1, 2], [3]]


@pytest.mark.parametrize(("lengths", "dimensions"), [([3, 3], 3), ([3, 2], None), ([1, 1], None), ([], None)])
def test_vectors_are_equally_long(lengths: list[int], dimensions: int | None) -> None:
    """One number is no vector, and numbers of varying count are none either."""
    assert guess.dimensions([[0.5] * one for one in lengths]) == dimensions
