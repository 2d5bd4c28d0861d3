"""The protocol, explored completely: no violation with all rules, and a violation without any one of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.model.__main__ import MODELS, RULES, row
from tests.model.explorer import Model, explore

_PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_nothing_goes_wrong(model: type[Model[Any]]) -> None:
    """No reachable state is wrong, whichever process stalls or dies; in the end every document equals its SELECT."""
    found = explore(model())
    assert not found.path, "\n".join(found.path)
    assert found.ends, "no state has all work done"


@pytest.mark.parametrize("name", RULES)
def test_no_rule_is_idle(name: str) -> None:
    """Every rule is needed, and every assumption: without it, the model finds a violation."""
    model, rule = RULES[name]
    assert explore(model(without=rule.name)).path


def test_every_rule_names_the_module_that_keeps_it() -> None:
    """The module that keeps a rule exists, and the names of rules are unique."""
    for _, rule in RULES.values():
        assert not rule.kept_by or importlib.util.find_spec(rule.kept_by), rule.kept_by
    assert len(RULES) == sum(len(model.rules) for model in MODELS)


def test_the_page_has_every_rule() -> None:
    """docs/protocol.md lists every model and rule with its current text; the figures may be from an earlier run."""
    page = _PAGE.read_text()
    for model in MODELS:
        assert f"| {model.name} | {model.about} | {model.bounds} |" in page
    for _, rule in RULES.values():
        assert row(rule) in page
    assert page.count("** (`") == len(RULES), "the page lists a rule that no model has"
