"""Wording: numbers, times and long values as a person says them."""

from __future__ import annotations

_LONG_TEXT = 200
_LONG_LIST = 5
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    for unit, name in ((_DAY, "day"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 1.5 * unit:
            return f"about {seconds / unit:.0f} {name}{'s' if name == 'day' else ''}"
    return f"about {seconds:.0f} s" if seconds >= 1 else "less than a second"


def amount(many: int, noun: str) -> str:
    """So many of something."""
    return f"{many:,} {noun}{'' if many == 1 else 's'}"


def shortened(value: object) -> object:
    """JSON in which long texts and lists are cut, and say so; a cut that would save nothing is not made."""
    if isinstance(value, str):
        return min(value, f"{value[:_LONG_TEXT]}… ({len(value):,} characters)", key=len)
    if isinstance(value, list):
        rest = [f"… {len(value) - _LONG_LIST:,} more"] if len(value) > _LONG_LIST else []
        return [shortened(one) for one in value[:_LONG_LIST]] + rest
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    return value
