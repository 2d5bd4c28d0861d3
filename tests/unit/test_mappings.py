"""Options of a mapping, however they are spelled."""

from __future__ import annotations

import pytest

from syncer.plan.mappings import settled


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ({"enabled": "false", "coerce": "true"}, {"enabled": False, "coerce": True}),
        ({"ignore_malformed": False}, {"ignore_malformed": False}),
        ({"enabled": "perhaps", "ignore_above": True, "scaling_factor": "abc"}, {}),
        ({"ignore_above": "256", "scaling_factor": "100"}, {"ignore_above": 256, "scaling_factor": 100}),
        ({"ignore_above": 256.0, "scaling_factor": 0.1}, {"ignore_above": 256, "scaling_factor": 0.1}),
        ({"ignore_above": "1e999", "scaling_factor": float("nan")}, {}),
        ({"copy_to": "all"}, {"copy_to": ["all"]}),
        ({"copy_to": ["all", 5]}, {"copy_to": ["all", "5"]}),
    ],
)  # fmt: skip
def test_an_option_has_one_type(spelled: dict[str, object], meant: dict[str, object]) -> None:
    """What Elasticsearch takes for a boolean or a number is one, at every depth; what it refuses is left out."""
    inside = {"type": "text", "fields": {"enabled": spelled}, "properties": {"coerce": spelled}}
    expected = {"type": "text", "fields": {"enabled": meant}, "properties": {"coerce": meant}}
    assert settled(spelled) == meant
    assert settled({"properties": {"title": inside}}) == {"properties": {"title": expected}}
