"""Rules: what the name and the type of a column say about it.

All rules of a draft that go by a name stand here, so that one place tells what a draft leaves out and why. Names are
those of Rails, Django, Laravel, Prisma, TypeORM and usual content management systems, in snake case and camel case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def _named(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


PERSONAL = _named(
    r"passw|passphrase|passcode|secret|token|(api|private|access).?key|e.?mail|phone|passport|(tax|national|vat).?(id|n)"
    r"|two_?fa|2fa|(backup|recovery)_?code|session_?state|^home_?(lat|lon|lng|loc|tile)|(^|_)pass_?(hash|crypt|key)"
    r"|card.?number|salary|birth|gender|religion|ethnic|(ip|remote).?addr|(^|_)ip$|(^|_)(sign_in|client)_ip"
    r"|street|post(al)?.?code|zip.?code|(^|_)address(_?(line)?_?\d)?$",
    r"(^|_)(pwd|salt|t?otp|pin|cvv|cvc|mobile|fax|msisdn|ssn|iban|born|dob)(_|$)",
)
"""Secrets, and what is known of a person. Flags with such a name, and keys, are no personal data."""
BOOKKEEPING = _named(
    r"^(lock_?version|row_?version|version|xmin|raw_.*|block_name)$",
    r"^(sign_?in|login)_?count$|^(current|last)_?(sign_?in|log_?in).*|^(failed_attempts|remember_created_at)$",
    r"^(created|updated|modified|deleted|changed|edited|inserted)_?by(_?id|_?uuid)?$",
    r"^(is_?superuser|is_?staff)$",
)
"""What an application notes for itself, in any row."""
CHANGED = _named(r"^(updated|modified|changed|last_modified)(_?(at|on|date|time))?$")
"""When a row was changed: shown of a document's own row, and of no other."""
NOTED_ON = _named("created|added|inserted|assigned", CHANGED.pattern)
"""When a link was made or changed: a link that says no more than that is a mere link."""
LABEL = _named(r"name$|title$|label$|^(login|code|number|slug|handle|symbol|sku|alt|url)$")
"""What names a row to a reader. A row that is referred to is shown by its key and these."""
ORDER = _named(
    r"^_?(position|pos|sort|sorting|sort_?order|order|ordinal|rank|seq|sequence|idx)$|_(position|rank|order)$"
)
"""Numbers by which rows are ordered."""
LOCALE = _named(r"^_?(locale|language|lang|culture)(_?(code|id))?$")
KEY = _named(r"^(meta_?)?(k|key)$")
"""What tells translations apart, and what values are stored by: such rows become one object."""
DELETED_ON = _named(r"^(deleted|discarded|removed|trashed)_?(at|on|date)$")
DELETED = _named(r"^(is_?)?(deleted|discarded|removed|trashed)$")
PUBLISHED_ON = _named(r"^published_?(at|on)$")
PUBLISHED = _named(r"^(is_?)?published$")
IS_NOT_SET, IS_SET = ("NOT {0}", "{0} IS FALSE", "{0} IS NOT TRUE"), ("{0}", "{0} IS TRUE")
"""Ways to say it of a boolean column: Postgres uses a partial index only for its own one."""
PUBLISHED_LABEL = "published"
"""The label of an enum that says the same."""
KEYWORD_NAMES = re.compile(
    r"(^|_)(id|uuid|slug|code|status|state|type|kind|level|sku|isbn|handle|locale|language|currency|path|url|thumbnail"
    r"|filename|number|unit|key|timezone|color|icon)$|[a-z](Id|Uuid|Code|Status|State|Type|Kind|Url|Key)$"
)
"""Texts that are found as a whole, and by no word in them."""
KEY_SUFFIX = re.compile(r"(_id|_uuid|_key|_fk|_code|(?<=[a-z])(Id|ID|Uuid|Key|Code))$")
"""A reference is named by its column without this: ``user`` by ``user_id``."""
LATITUDE, LONGITUDE = _named(r"^lat(itude)?$"), _named(r"^(lon|lng|long|longitude)$")

_RANGE = "CASE WHEN NOT isempty({{0}}) THEN jsonb_build_object('gte', {0}, 'lt', {1}) END"
_OPEN_RANGE = (
    "CASE WHEN NOT isempty({{0}}) THEN jsonb_strip_nulls(jsonb_build_object("
    "'gte', CASE WHEN lower_inc({{0}}) THEN {0} END, 'gt', CASE WHEN NOT lower_inc({{0}}) THEN {0} END, "
    "'lte', CASE WHEN upper_inc({{0}}) THEN {1} END, 'lt', CASE WHEN NOT upper_inc({{0}}) THEN {1} END)) END"
)
_ENDS = "lower({0})", "upper({0})"
_DATES = "nullif(lower({0}), '-infinity')", "nullif(upper({0}), 'infinity')"
CASTS: Mapping[str, str] = {
    "money": "{0}::numeric{1}",
    "bpchar": "{0}::text{1}",
    "vector": "{0}::real[]{1}",
    "halfvec": "{0}::real[]{1}",
    **dict.fromkeys(("int4range", "int8range"), _RANGE.format(*_ENDS)),
    "daterange": _RANGE.format(*_DATES),
    "numrange": _OPEN_RANGE.format(*_ENDS),
    **dict.fromkeys(("tsrange", "tstzrange"), _OPEN_RANGE.format(*_DATES)),
}
"""How a draft shows a column, {0}, of a type; {1} is [] if it is an array."""
_OF_CATALOGUE = (
    *("class", "collation", "config", "database", "dictionary", "namespace"),
    *("oper", "operator", "proc", "procedure", "role", "type"),
)
LEFT_OUT: Mapping[str, str] = {
    "bytea": "bytes are not searched: encode(column, 'base64') and the type binary would show them",
    "tsvector": "it is Postgres' own way to search: select the text that it is made of",
    **dict.fromkeys(("geometry", "geography"), "its text is not readable: select ST_AsGeoJSON(column)::jsonb"),
    **{f"reg{name}": "its text is a name in the catalogue, which changes without the row" for name in _OF_CATALOGUE},
}
"""Types that a draft does not show."""
KEY_TEXTS: Mapping[str, str] = {
    "timestamptz": "extract(epoch FROM {0} AT TIME ZONE 'UTC')::text",
    "timestamp": "extract(epoch FROM {0})::text",
    "date": "({0} - '1970-01-01'::date)::text",
}
"""A text of a key that Postgres can index: that of ``::text`` depends on the session, so no index can have it."""

RANGE_TYPES: Mapping[str, str] = {
    **{name: f"{name}_range" for name in ("integer", "long", "float", "double", "date")},
    "short": "integer_range",
}
RANGE_BOUNDS, POINT = frozenset({"gte", "gt", "lte", "lt"}), frozenset({"lat", "lon"})

_KEYWORD_CHARACTERS_MAX = 8191  # of at most 4 bytes each, so that Elasticsearch indexes them all
KEYWORD: Mapping[str, Any] = {"type": "keyword", "ignore_above": _KEYWORD_CHARACTERS_MAX}
TEXT: Mapping[str, Any] = {"type": "text", "fields": {"keyword": KEYWORD}}
DATE: Mapping[str, Any] = {"type": "date"}
STORED: Mapping[str, Any] = {"type": "object", "enabled": False}
"""Takes any JSON: it is kept and shown, but not searched."""
KEYS_ARE_DATA: Mapping[str, Any] = {"type": "flattened", "ignore_above": _KEYWORD_CHARACTERS_MAX}
"""Takes any object: each key of it is found by the exact text of its value."""
MAPPINGS: Mapping[str, Mapping[str, Any]] = {
    "int2": {"type": "short"},
    "int4": {"type": "integer"},
    "int8": {"type": "long"},
    "float4": {"type": "float"},
    "float8": {"type": "double"},
    "numeric": {"type": "double"},
    "bool": {"type": "boolean"},
    "hstore": KEYS_ARE_DATA,
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext", "char", "xml"), TEXT),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), DATE),
}
"""By name in the system catalogue. Other types are mapped as keyword, with the text that Postgres shows."""
