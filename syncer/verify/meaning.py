"""What the mapping of an index makes of a value, so that two values that are indexed alike compare as equal.

Alike are null, an empty array and no field; a value and an array of it; a number and its text; one instant in two
formats; a range with its bounds included or not; a field of an object and a dotted name. The order of an array counts,
as readers of ``_source`` see it. What the type of a field does not read stays as it is, and so differs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any

Rendered = Mapping[str, Iterator[Any]]
"""By path, what the server reads in the dates of one document, in the order of its ``_source``."""
_DATES = frozenset({"date", "date_nanos", "date_range"})
_READABLE_FORMATS = frozenset(
    {
        *("strict_date_optional_time", "date_optional_time", "strict_date_optional_time_nanos", "iso8601"),
        *("strict_date", "date", "strict_date_time", "date_time", "epoch_millis", "epoch_second"),
    }
)
"""Formats whose texts are read here as the server reads them; it is asked for those of any other format."""
_ISO = re.compile(r"\d{4}-\d\d-\d\d.*")
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}0*[1-9]")
_YEAR_DIGITS = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS = frozenset({"long", "integer", "short", "byte", "unsigned_long"})
_TEXTS = frozenset({"text", "keyword", "match_only_text", "wildcard", "constant_keyword", "search_as_you_type"})
_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_INTEGERS, lambda value: int(Decimal(value))),
    **dict.fromkeys(_TEXTS, lambda value: str(value).lower() if isinstance(value, bool) else str(value)),
    "boolean": lambda value: {"true": True, "false": False, "": False}.get(value, value),
    "double": float,
    **dict.fromkeys(("float", "dense_vector"), lambda value: struct.unpack("f", struct.pack("f", float(value)))[0]),
    "half_float": lambda value: struct.unpack("e", struct.pack("e", float(value)))[0],
}


class Meaning:
    """Reads values by the mapping of one physical index; a field at one of the ``ignored`` paths counts as absent."""

    def __init__(self, mapping: Mapping[str, Any], *, ignored: frozenset[str] = frozenset()) -> None:
        self._ignored = ignored
        self._fields = dict(_fields(mapping, ""))
        dates = {path: field for path, field in self._fields.items() if field.get("type") in _DATES}
        formats = {path: field.get("format", "date").split("||") for path, field in dates.items()}
        self.dates = dates.keys()
        """The paths of dates, and of ranges of dates."""
        self.to_render = {path for path, names in formats.items() if not _READABLE_FORMATS.issuperset(names)}
        """Those that only the server can read."""
        self.unrenderable = self._fields.keys() - dates.keys()

    def of(self, value: Any, path: str = "", *, rendered: Rendered | None = None) -> Any:
        """Return the meaning of a value at a path, or of a whole document; None if it has none.

        An object's is flat: its names are paths. With ``rendered``, dates are as the server has read them; without, a
        date is ISO 8601 or a number.
        """
        if value is None or path in self._ignored:
            return None
        if isinstance(value, list):
            meanings = [self.of(element, path, rendered=rendered) for element in value]
            elements = list(chain.from_iterable(m if isinstance(m, list) else [m] for m in meanings if m is not None))
            return elements[0] if len(elements) == 1 else elements or None
        field = self._fields.get(path, {})
        if rendered is not None and path in rendered:
            value = next(rendered[path], value)
        if not isinstance(value, dict):
            return _scalar(value, field)
        if field.get("type", "").endswith("_range"):
            return dict(_bound(operator, bound, field) for operator, bound in value.items() if bound is not None)
        flat: dict[str, Any] = {}
        for name, element in value.items():
            meaning = self.of(element, f"{path}.{name}" if path else name, rendered=rendered)
            if meaning and isinstance(meaning, dict):
                flat.update((f"{name}.{inner}", meaning[inner]) for inner in meaning)
            elif meaning is not None:
                flat[name] = meaning
        return flat or None


def rendered(fields: Mapping[str, list[Any]], path: str) -> Iterator[Any]:
    """Yield the values of a path in a search's ``fields``, where nested objects have fields of their own."""
    for name, values in fields.items():
        if name == path:
            yield from values
        elif path.startswith(f"{name}."):
            for value in values:
                yield from rendered(value, path.removeprefix(f"{name}."))


def _fields(mapping: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, field in mapping.get("properties", {}).items():
        yield f"{prefix}{name}", field
        yield from _fields(field, f"{prefix}{name}.")


def _scalar(value: Any, field: Mapping[str, Any]) -> Any:
    type_ = field.get("type", "object")
    with suppress(ValueError, ArithmeticError, TypeError, struct.error):
        if type_ in _DATES:
            return _instant(value, field).isoformat()
        if type_ == "scaled_float":
            return round(float(value) * field["scaling_factor"])
        return _READ[type_](value) if type_ in _READ else value
    return value


def _instant(value: Any, field: Mapping[str, Any]) -> datetime:
    """Return the instant of a date as its type keeps it.

    Raises:
        ValueError: It is neither ISO 8601 nor a number, or more precise than a value of Postgres.
    """
    keeps_nanoseconds = field["type"] == "date_nanos"
    if not isinstance(value, str) or (value.removeprefix("-").isdigit() and len(value) > _YEAR_DIGITS):
        epochs = (name for name in field.get("format", "").split("||") if name.startswith("epoch_"))
        in_seconds = next(epochs, None) == "epoch_second"
        instant = _EPOCH + timedelta(microseconds=int(Decimal(value) * (1_000_000 if in_seconds else 1000)))
    elif not _ISO.fullmatch(value) or (keeps_nanoseconds and _BELOW_MICROSECONDS.search(value)):
        raise ValueError(value)
    else:
        instant = datetime.fromisoformat(value)  # without a zone, it is in UTC
        instant = instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    return instant if keeps_nanoseconds else instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def _bound(operator: str, value: Any, field: Mapping[str, Any]) -> tuple[str, Any]:
    """Return a bound of a range; one that is not included is the next value, if values have steps."""
    steps = {"gt": 1, "lt": -1}.get(operator, 0)
    including, element = operator[:2] + "e", field["type"].removesuffix("_range")
    with suppress(ValueError, ArithmeticError, TypeError):
        if element == "date":
            return including, (_instant(value, field) + timedelta(milliseconds=steps)).isoformat()
        if element in _INTEGERS:
            return including, _READ[element](value) + steps
        return operator, _READ[element](value) if element in _READ else value
    return operator, value
