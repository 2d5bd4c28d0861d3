"""How numbers, times and long values are said."""

from __future__ import annotations

import pytest

from syncer.base.formatting import brief, duration, elapsed, shortened


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


def test_long_values_are_cut_and_say_so() -> None:
    """A long text and a long list show their beginning and how much there is; what is hardly long is left alone."""
    shown = shortened({"text": "x" * 300, "list": list(range(9)), "nested": [{"text": "short"}]})
    assert isinstance(shown, dict)
    assert shown["text"].endswith("… (300 characters)")
    assert shown["list"] == [0, 1, 2, 3, 4, "… 4 more"]
    assert shown["nested"] == [{"text": "short"}]
    assert shortened("x" * 205) == "x" * 205


def test_seconds_are_no_full_minute() -> None:
    """What is rounded up is carried over."""
    assert tuple(map(elapsed, (59.7, 359.6, 3599.9))) == ("1 min 0 s", "6 min 0 s", "1 h 0 min")


def test_a_value_that_elasticsearch_quotes_is_not_shown() -> None:
    """Only --values shows values; and no reason loads the screen."""
    reason = (
        "failed to parse field [title] of type [keyword]. Preview of field's value: 'it's: secret': " + "long " * 99
    )
    assert "secret" not in brief(reason)
    assert len(brief(reason)) < 300
    assert brief("refused. Preview of field's value: 'secret'") == "refused."
    assert brief("refused. Preview of field's value: 'secret': no date") == "refused: no date"
