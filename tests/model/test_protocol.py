"""The protocol, explored completely: no violation with all rules, and a violation without any one of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.model import catalogue
from tests.model.explorer import Model, Rule

_PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
_BEGIN, _END = "<!-- from: python -m tests.model --page -->\n", "<!-- end -->\n"


def _name(one: object) -> str:
    return one.name if isinstance(one, Rule) or (isinstance(one, type) and issubclass(one, Model)) else str(one)


@pytest.mark.parametrize("model", catalogue.MODELS, ids=_name)
def test_nothing_goes_wrong(model: type[Model[Any]]) -> None:
    """No reachable state is wrong, whichever process stalls or dies; in the end every document equals its SELECT."""
    found = catalogue.kept(model)
    assert found.trace is None, "\n".join(found.trace.lines())
    assert found.ends, "no state has all work done"


@pytest.mark.soak
@pytest.mark.parametrize("model", catalogue.MODELS, ids=_name)
def test_nothing_goes_wrong_further_out(model: type[Model[Any]]) -> None:
    """The same holds with one more commit, transaction or crash."""
    found = catalogue.kept(model, is_large=True)
    assert found.trace is None, "\n".join(found.trace.lines())


@pytest.mark.parametrize(("model", "rule"), catalogue.RULES, ids=_name)
def test_no_rule_is_idle(model: type[Model[Any]], rule: Rule) -> None:
    """Every rule is needed: without it, the model finds a violation."""
    assert catalogue.broken(model, rule).trace is not None


@pytest.mark.parametrize(("model", "name"), catalogue.BEYOND, ids=_name)
def test_what_it_does_not_bear_is_known(model: type[Model[Any]], name: str) -> None:
    """Every known limit is real: the model finds a violation."""
    assert catalogue.surpassed(model, name).trace is not None


def test_every_rule_names_the_module_that_keeps_it() -> None:
    """The module that keeps a rule exists, and the names of rules are unique."""
    for _, rule in catalogue.RULES:
        assert importlib.util.find_spec(rule.kept_by), rule.kept_by
    assert len({rule.name for _, rule in catalogue.RULES}) == len(catalogue.RULES)


def test_the_page_is_what_the_models_say() -> None:
    """docs/protocol.md lists every model and rule with its current text; the figures may be from an earlier run."""
    page = _PAGE.read_text()
    for model in catalogue.MODELS:
        assert f"| {model.name} | {model.about} | {model().bounds} |" in page
        for rule in model.rules:
            assert f"| **{rule.says}** (`{rule.name}`) | `{rule.kept_by}` | {rule.otherwise} |" in page
    for model, name in catalogue.BEYOND:
        assert f"| {model.name}: {model.beyond[name]} (`{name}`) |" in page
    rows = page[page.index(_BEGIN) : page.index(_END)].count("(`")
    assert rows == len(catalogue.RULES) + len(catalogue.BEYOND), "the page lists a rule that no model has"
