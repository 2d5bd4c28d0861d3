"""Rules: what the type and the name of a column say about it.

All rules of a draft that go by a name stand here, so that one place tells what a draft leaves out and why. Names are
those of Rails, Django, Laravel, Prisma, TypeORM and usual content management systems, in snake case and camel case,
also where Postgres has folded it to lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def _named(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_FLAGS = frozenset({"bool"})
_DATES = frozenset({"date", "timestamp", "timestamptz"})
_FRACTIONS = frozenset({"float4", "float8", "numeric"})
_NUMBERS = _FRACTIONS | {"int2", "int4", "int8"}
TEXTS = frozenset({"text", "varchar", "bpchar", "citext", "name"})
_BOOKKEEPING = _named(
    r"^(lock_?version|row_?(version|guid)|xmin|raw_.*|block_name)$",
    r"^(sign_?in|login)_?count$|^(current|last)_?(sign_?in|log_?in).*|^(failed_attempts|remember_created_at)$",
    r"^(created|updated|modified|deleted|changed|edited|inserted)_?by(_?id|_?uuid)?$|^updater(_?id)?$",
    r"^(is_?superuser|is_?staff)$",
)
_PERSONAL = _named(
    r"passw|passphrase|passcode|secret|token|(api|private|access|hmac|signing|share|hashed).?key|(key|lookup)_?hash"
    r"|credential|authori[sz]ation_?code|user_?agent|e.?mail|phone|passport|tax.?(ident|num|n[or]$)|(national|vat).?(id|n)"
    r"|two_?fa|2fa|(backup|recovery)_?code|session_?(state|data|key)|^home_?(lat|lon|lng|loc|tile)|(^|_)pass_?(hash|crypt|key)"
    r"|card.?number|salary|birth|gender|religion|ethnic|(ip|remote).?addr|(^|_)ip$|(^|_)(sign_in|client)_ip"
    r"|street|post(al)?.?code|zip.?code|(^|_)address(_?(line)?_?\d)?$",
    r"(^|_)(pwd|salt|t?otp|pin|cvv|cvc|mobile|fax|msisdn|ssn|iban|born|dob)(_|$)",
)
_COUNT = _named(
    r"^tokens$|_tokens(_|$)|(token|mail|password|credential)s?_(attempts|count|id|limit|usage|used)$",
)
_ORDER = r"^_?(position|pos|sort|sorting|sort_?order|order|ordinal|rank|seq|sequence|idx)$|_(position|rank|order)$"
_DELETED_ON = _named(r"^(deleted?|discarded|removed|trashed)_?(at|on|date|time|ts)$")
_DELETED = _named(r"^(is_?)?(deleted|discarded|removed|trashed)$")
_KINDS: tuple[tuple[str, frozenset[str] | None, re.Pattern[str]], ...] = (
    ("deleted_on", _DATES, _DELETED_ON),
    ("deleted", _FLAGS, _DELETED),
    ("deleted_number", _NUMBERS, _DELETED_ON),
    ("deleted_number", frozenset({"int2"}), _DELETED),
    ("published", _FLAGS, _named(r"^(is_?)?published$")),
    ("published_on", _DATES, _named(r"^published_?(at|on)$")),
    ("private", None, _BOOKKEEPING),
    ("private", _NUMBERS, _named("^version$")),  # of software, it is a text
    ("flag", _FLAGS, _named("")),  # a flag such as email_verified is not personal
    ("count", _NUMBERS, _COUNT),
    ("private", None, _PERSONAL),
    ("private", TEXTS, _named("tax_?id$")),  # of another type, it refers to a tax
    ("changed", None, _named(r"^(updated|modified|changed|last_?(modified|updated))(_?(at|on|date|time))?$")),
    ("noted", _DATES, _named("created|added|inserted|assigned")),
    ("order", _NUMBERS, _named(_ORDER)),
    ("locale", None, _named(r"^_?(locale|language|lang|culture)(_?code)?$")),
    ("changed", None, _named("^_")),
    ("key", None, _named(r"^(meta_?)?(k|key)$")),
    ("label", TEXTS, _named(r"name$|title$|label$|^(login|code|number|num|slug|handle|symbol|sku|alt|url)$")),
    ("lat", _FRACTIONS, _named(r"^(geo_?)?lat(itude)?$")),
    ("lon", _FRACTIONS, _named(r"^(geo_?)?(lon|lng|long|longitude)$")),
)
_PUBLISHED_LABEL = "published"
CONDITIONS: Mapping[str, tuple[str, ...]] = {
    "deleted_on": ("{0} IS NULL",),
    "deleted": ("NOT {0}", "{0} IS FALSE", "{0} IS NOT TRUE"),
    "deleted_number": ("{0} = 0", "coalesce({0}, 0) = 0"),
    "published_label": (f"{{0}} = '{_PUBLISHED_LABEL}'",),
    "published": ("{0}", "{0} IS TRUE"),
    "published_on": ("{0} IS NOT NULL",),
}
"""What holds for rows that are shown, by the kind of a column, and ways to say it: the last one if it may be null.

Postgres uses a partial index only for its own spelling. Only one kind of ``published`` counts.
"""


def kind_of(name: str, type_: str, labels: Sequence[str]) -> str:
    """Return what a column is: the first kind that fits its type, and its name in snake case; empty if none does."""
    if _PUBLISHED_LABEL in labels:
        return "published_label"
    fitting = (kind for kind, types, names in _KINDS if types is None or type_ in types if names.search(snake(name)))
    return next(fitting, "")


def snake(name: str) -> str:
    """Return ``sort_Order`` for ``sortOrder``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)


def plain(name: str) -> str:
    """Return ``sortorder`` for ``sort_Order``."""
    return name.replace("_", "").lower()


def singular(name: str) -> str:
    """Return ``city`` for ``cities``."""
    if re.search(r"(ss|x|sh|[nrt]ch|tus|ias)es$", name):
        return name[:-2]
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    return name[:-1] if name.endswith("s") and not re.search("(ss|[tr]us|ias)$", name) else name


def plural(name: str) -> str:
    """Return ``cities`` for ``city``."""
    if any(word != singular(word) or word in ("data", "metadata") for word in snake(name).split("_")):
        return name
    if re.search(r"[^aeiou]y$", name):
        return f"{name[:-1]}ies"
    return f"{name}es" if re.search(r"(s|x|z|ch|sh)$", name) else f"{name}s"


KEYWORD_NAMES = _named(
    r"(^|_)(uuid|slug|state|kind|level|sku|isbn|handle|locale|language|currency|thumbnail|unit|key|timezone|color|icon)$"
    r"|(id|code|status|type|path|url|filename|number)$"
)
"""Texts that are found as a whole, and by no word in them; the name is in snake case."""
INSTANT_NAMES = _named(r"(at|date|time|ts|stamp|unix|created|updated|modified)$|^time")
EPOCHS: Mapping[str, range] = {
    "epoch_second": range(10**8, 5 * 10**9),
    "epoch_millis": range(10**11, 5 * 10**12),
}
"""Numbers that are dates, from 1973 to 2128, if the name says so; the name has no underscores."""
KEY_TABLES = _named(r"(api|access|signing|license)_?keys?$|credentials?$")
"""Tables whose column ``key`` is a secret; the name is in snake case."""
ALIKE = ({"int2", "int4"}, {"int2", "int8"}, {"int4", "int8"}, {"text", "varchar"})
"""Types that a column and the key that it refers to by its name may have, if they differ."""
TENANTS = _named("^(tenant|organi[sz]ation|workspace)$")
"""References to the tenant of a row: a document has one, so what is inside does not repeat it."""
KEY_SUFFIX = re.compile(r"(_id|_uuid|_key|_fk|_code|(?<=[a-z])(Id|ID|Uuid|Key|Code)|(?<=[a-z]{3})id)$")
"""A reference is named by its column without this: ``user`` by ``user_id``."""

_RANGE = "CASE WHEN NOT isempty({{0}}) THEN jsonb_build_object('gte', {0}, 'lt', {1}) END"
_OPEN_RANGE = (
    "CASE WHEN NOT isempty({{0}}) THEN jsonb_strip_nulls(jsonb_build_object("
    "'gte', CASE WHEN lower_inc({{0}}) THEN {0} END, 'gt', CASE WHEN NOT lower_inc({{0}}) THEN {0} END, "
    "'lte', CASE WHEN upper_inc({{0}}) THEN {1} END, 'lt', CASE WHEN NOT upper_inc({{0}}) THEN {1} END)) END"
)
_ENDS = "lower({0})", "upper({0})"
_FINITE_ENDS = "nullif(lower({0}), '-infinity')", "nullif(upper({0}), 'infinity')"
CASTS: Mapping[str, str] = {
    "money": "{0}::numeric{1}",
    "bpchar": "{0}::text{1}",
    "vector": "{0}::real[]{1}",
    "halfvec": "{0}::real[]{1}",
    **dict.fromkeys(("geometry", "geography"), "{2}ST_AsGeoJSON({0})::jsonb"),
    "projected": "{2}ST_AsGeoJSON({2}ST_Transform({0}, 4326))::jsonb",
    **dict.fromkeys(("int4range", "int8range"), _RANGE.format(*_ENDS)),
    "daterange": _RANGE.format(*_FINITE_ENDS),
    "numrange": _OPEN_RANGE.format(*_ENDS),
    **dict.fromkeys(("tsrange", "tstzrange"), _OPEN_RANGE.format(*_FINITE_ENDS)),
}
"""How a draft shows a column, {0}, of a type; {1} is [] if it is an array, {2} PostGIS' schema if it must be named."""
LEFT_OUT: tuple[tuple[re.Pattern[str], str], ...] = (
    (_named("^bytea$"), "bytes are not searched: encode(column, 'base64') and the type binary would show them"),
    (_named("^tsvector$"), "it is Postgres' own way to search: select the text that it is made of"),
    (
        _named("^reg(class|collation|config|database|dictionary|namespace|oper(ator)?|proc(edure)?|role|type)$"),
        "its text is a name in the catalogue, which changes without the row",
    ),
)
"""Types that a draft does not show, and why."""
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
GEOMETRIES = frozenset(
    ("Point", "MultiPoint", "LineString", "MultiLineString", "Polygon", "MultiPolygon", "GeometryCollection")
)
"""The types of GeoJSON (RFC 7946) that are places."""

_KEYWORD_CHARACTERS_MAX = 8191  # of at most 4 bytes each, so that Elasticsearch indexes them all
KEYWORD: Mapping[str, Any] = {"type": "keyword", "ignore_above": _KEYWORD_CHARACTERS_MAX}
TEXT: Mapping[str, Any] = {"type": "text", "fields": {"keyword": KEYWORD}}
DATE: Mapping[str, Any] = {"type": "date"}
STORED: Mapping[str, Any] = {"type": "object", "enabled": False}
"""Takes any JSON: it is kept and shown, but not searched."""
KEYS_ARE_DATA: Mapping[str, Any] = {"type": "flattened", "ignore_above": _KEYWORD_CHARACTERS_MAX}
"""Takes any object: each key of it is found by the exact text of its value."""
VECTOR: Mapping[str, Any] = {"type": "dense_vector"}
_OPENSEARCH: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "flattened": ("flat_object", {}),
    "dense_vector": ("knn_vector", {"dims": "dimension"}),
}
"""By a type of Elasticsearch: that of OpenSearch, and its names of those parameters that it takes."""


def for_opensearch(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping of a field in OpenSearch's words."""
    if field["type"] not in _OPENSEARCH:
        return field
    type_, parameters = _OPENSEARCH[field["type"]]
    return {"type": type_} | {parameters[name]: value for name, value in field.items() if name in parameters}


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
