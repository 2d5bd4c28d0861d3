"""What stands around our indices: templates that shape new ones, and the one that guards aliases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from syncer.doctor.finding import check
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import Symptom, advice, consider, wrong
from syncer.model import Role

# What an index is given that is made with a name of ours, and that changes documents or takes the index away.
_HARMFUL = ("index.default_pipeline", "index.final_pipeline", "index.lifecycle.name", "index.gc_deletes")


@check(
    "elasticsearch.templates",
    "No template gives our indices what changes documents, or takes the index away",
    promises=(2, 3),
    why="A new index, of an apply or a rebuild, gets what a template says and index.json does not.",
)
def _templates(patient: Patient) -> Iterator[Symptom]:
    for one in patient.documents:
        if one.role is not Role.SERVING:
            continue
        found = patient.elasticsearch.indices.simulate_index_template(name=f"{one.index}-999999").body
        template = found.get("template", {})
        settings = flat(template.get("settings", {}))
        harmful = [name for name in _HARMFUL if name in settings]
        if harmful:
            yield wrong(
                f"A template gives new indices of {one.name} {_named(harmful, settings)}",
                advice(_ABOUT_TEMPLATES),
            )
        others = sorted(
            name for name in settings if name not in harmful and not name.endswith("include_tier_preference")
        )
        others = [name for name in others if not name.startswith("index.routing.allocation")]
        fields = list(template.get("mappings", {}).get("properties", {}))
        if others or fields or template.get("aliases"):
            given = [
                *others,
                *(f"the field {name}" for name in fields),
                *(f"the alias {name}" for name in template["aliases"]),
            ]
            yield consider(
                f"A template gives new indices of {one.name} {', '.join(given[:5])}", advice(_ABOUT_TEMPLATES)
            )


_ABOUT_TEMPLATES = (
    "GET _index_template and GET _template say which have index_patterns that fit; take our names out of them, or say "
    "in index.json what is wanted instead."
)


def _named(names: Iterable[str], settings: Mapping[str, Any]) -> str:
    return " and ".join(f"{name}: {settings[name]}" for name in names)


def flat(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, Mapping) else {f"{path}{name}": value}
    return found


@check(
    "elasticsearch.guard",
    "A late delete cannot make an index where a write alias was",
    promises=(2,),
    why="A delete with an external version creates the index that it names; then no alias can have that name.",
)
def _guard(patient: Patient) -> Iterator[Symptom]:
    for one in patient.documents[:1]:
        found = patient.elasticsearch.indices.get_index_template().body["index_templates"]
        fitting = [
            template
            for template in found
            if any(_fits(pattern, one.target.write_alias) for pattern in _patterns(template))
        ]
        first = max(fitting, key=lambda template: template["index_template"].get("priority", 0), default=None)
        if first is None or first["index_template"].get("allow_auto_create") is not False:
            body = {"index_patterns": ["*-syncer-write"], "allow_auto_create": False, "priority": 500}
            if first is not None:
                body["priority"] = max(500, first["index_template"].get("priority", 0) + 1)
            yield wrong(
                "No template forbids that an index is created with the name of a write alias"
                if first is None
                else f"The template {first['name']} comes before syncer's, which forbids to create what writes name",
                patient.request("PUT", "/_index_template/syncer", json.dumps(body)),
            )


def _patterns(template: Mapping[str, Any]) -> list[str]:
    patterns: list[str] = template["index_template"]["index_patterns"]
    return patterns


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


CHECKS = (_templates, _guard)
