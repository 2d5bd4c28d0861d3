"""Mappings guessed from values."""

from __future__ import annotations

from typing import Any

import pytest

from syncer.apply.scaffold import mapping
from syncer.apply.scaffold.mapping import STORED, TEXT

LONG = {"type": "long", "coerce": False}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None, [2, 3]], LONG),
        ([1, 2.5], {"type": "double"}),
        ([2**63], {"type": "double"}),
        (["2026-11-21", "2026-11-21 10:00"], TEXT),
        (["2026-02-30"], TEXT),
        ([1, "a"], STORED),
        ([{"a": 1}, [1]], STORED),
        ([None], STORED),
        ([{"a": 1}, [{"a": 2}]], {"type": "object", "properties": {"a": LONG}}),
        ([[{"a": 1}], [{"a": 2}]], {"type": "nested", "properties": {"a": LONG}}),
        ([{"a": 1}, {"b": 2}], {"type": "object", "dynamic": False, "properties": {"a": LONG, "b": LONG}}),
        ([{str(number): 1 for number in range(51)}], {"type": "object", "dynamic": False}),
        ([{"a.b": 1, "": 2}], {"type": "object", "dynamic": False}),
    ],
)
def test_a_guess_takes_the_sampled_values(values: list[Any], expected: dict[str, Any]) -> None:
    """One kind of value decides; mixed ones are stored; keys that are data, or no field names, are not mapped."""
    assert mapping.guess(values) == expected
