"""How a plan says numbers and long values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from syncer.plan.estimate import Outcome
from syncer.plan.forecast import DocumentForecast, Forecast
from syncer.plan.page import _shortened, duration, show_forecast


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "less than a second"),
        (1.4, "about 1 s"),
        (89, "about 89 s"),
        (180, "about 3 min"),
        (5300, "about 88 min"),
        (7200, "about 2 h"),
        (259_200, "about 3 days"),
    ],
)
def test_a_duration_is_said_as_a_person_says_it(seconds: float, said: str) -> None:
    """In the unit that has two digits at most, and never as zero."""
    assert duration(seconds) == said


def heading(document: DocumentForecast) -> str:
    """What a plan begins with."""
    console = Console(width=60)
    seen = Forecast(is_migrated=True, documents=(document,), missing_indexes=(), released=(), forgotten=())
    with console.capture() as said:
        show_forecast(console, seen)
    assert not seen.is_refused
    return said.get().strip()


def test_a_new_index_is_said_with_its_reason_and_how_long_it_takes() -> None:
    """On one line, with the server's words as they are; so is one that is not needed, without a reason."""
    document = DocumentForecast(
        name="blogpost",
        index="blog",
        refusals=(),
        outcome=Outcome.REINDEX,
        reason="mapper [title] cannot be changed from type [text] to [keyword]",
        documents=90_000,
        fill_seconds=12.3,
        sampled=200,
    )
    assert heading(document) == (
        "blogpost → blog: needs a new index: mapper [title] cannot be changed from type [text] to [keyword]; "
        "90,000 documents, about 12 s to fill (measured on 200)"
    )
    assert heading(replace(document, documents=None)).endswith("[keyword]; too many documents to count in time")
    in_place = replace(document, outcome=Outcome.IN_PLACE, reason=None, fill_seconds=None)
    assert heading(in_place) == "blogpost → blog: changed in place, 90,000 documents"


def test_long_values_are_cut_and_say_so() -> None:
    """A long text and a long list show their beginning and how much there is; what is short is left alone."""
    shown = _shortened({"text": "x" * 300, "list": list(range(9)), "nested": [{"text": "short"}]})
    assert isinstance(shown, dict)
    assert shown["text"].endswith("… (300 characters)")
    assert shown["list"] == [0, 1, 2, 3, 4, "… 4 more"]
    assert shown["nested"] == [{"text": "short"}]
