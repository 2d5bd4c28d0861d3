"""The protocol, explored completely: no violation with all rules, and a violation without any one of them."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest

from tests.model.__main__ import MODELS, PAGE, RULES
from tests.model.explorer import Model, explore


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_nothing_goes_wrong(model: type[Model[Any]]) -> None:
    """No reachable state is wrong, whichever process stalls or dies; in the end every document equals its SELECT."""
    result = explore(model())
    assert not result.path, "\n".join(result.path)
    assert result.ends, "no state has all work done"


@pytest.mark.parametrize("name", RULES)
def test_no_rule_is_idle(name: str) -> None:
    """Every rule is needed, and every assumption: without it, the model finds a violation."""
    model, rule = RULES[name]
    assert explore(model(without=rule)).path


def test_the_page_explains_every_rule_and_no_other() -> None:
    """Each with the module that keeps it, which exists; the figures may be from an earlier run."""
    page = PAGE.read_text("utf-8")
    for model in MODELS:
        assert f"| {model.name} | {model.about} | {model.bounds} |" in page
    row = r"^\| \*\*.+\*\* \(`(.+)`\) \| (?:`(.+?)`|\*assumed\*) \| .+ \| \d+ steps \|$"
    rows = re.findall(row, page, re.MULTILINE)
    assert [name for name, _ in rows] == [*RULES]
    assert [kept_by for _, kept_by in rows if kept_by and not importlib.util.find_spec(kept_by)] == []
