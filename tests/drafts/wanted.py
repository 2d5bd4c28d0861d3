"""What a team would want of its schema, written by hand, and how much of a draft it would keep.

A file in `schemas` has the arguments of `init`, the tables, the SELECT and the mapping. A line is one item of a SELECT,
one of its clauses, or one field of the mapping: the layout does not count, and neither do the numbers of aliases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).parent / "schemas"
KEYWORD = {"type": "keyword", "ignore_above": 8191}
_SHORT: dict[str, dict[str, Any]] = {
    "keyword": KEYWORD,
    "flattened": {**KEYWORD, "type": "flattened"},
    "text": {"type": "text", "fields": {"keyword": KEYWORD}},
}
_NUMBERED = re.compile(r"\b([a-z])_\d+\b")
_BREAKS = re.compile(r"(?<!'),|(?=\b(?:FROM|JOIN|WHERE|AND|ORDER BY) )|(?<=\()(?=SELECT )|(?<=build_object\()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A schema, and the document that a team would want."""

    init: list[str]
    schema: str
    select: str
    mapping: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How many lines a draft has, how many of them stay, and how many are to be added."""

    drafted: int
    staying: int
    added: int


def read(name: str) -> Wanted:
    """Read a schema."""
    return Wanted(**yaml.safe_load((SCHEMAS / f"{name}.yaml").read_text()))


def compare(wanted: Wanted, folder: Path) -> Figures:
    """Compare the files of a draft with what is wanted."""
    mapping = json.loads((folder / "index.json").read_text())["mappings"]["properties"]
    drafted = [*_lines((folder / "select.sql").read_text()), *_fields(mapping)]
    sought = [*_lines(wanted.select), *_wanted_fields(wanted.mapping)]
    same = sum(block.size for block in SequenceMatcher(None, drafted, sought, autojunk=False).get_matching_blocks())
    return Figures(drafted=len(drafted), staying=same, added=len(sought) - same)


def _lines(select: str) -> list[str]:
    text = " ".join(line for line in select.splitlines() if not line.lstrip().startswith("--"))
    text = _NUMBERED.sub(r"\1", re.sub(r"\s+", " ", text)).replace("( ", "(").replace(" )", ")")
    return [line.strip() for line in _BREAKS.split(text) if line.strip()]


def _fields(properties: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, mapping in sorted(properties.items()):
        options = {key: value for key, value in mapping.items() if key != "properties"}
        yield f"{path}{name}: {json.dumps(options, sort_keys=True)}"
        yield from _fields(mapping.get("properties", {}), f"{path}{name}.")


def _wanted_fields(fields: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, options in sorted(fields.items()):
        if isinstance(options, str):
            yield f"{path}{name}: {json.dumps(_SHORT.get(options, {'type': options}), sort_keys=True)}"
            continue
        inside, mapping = (options[0], {"type": "nested"}) if isinstance(options, list) else (options, {})
        yield f"{path}{name}: {json.dumps(mapping)}"
        yield from _wanted_fields(inside, f"{path}{name}.")
