"""The fault matrix says what the tests do, and each rule that it names can be taken out."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests import proof
from tests.proof import Rule

RULES = {f"{module.__name__}.{name}: {rule.name}": rule for module, name, one in proof.proofs() for rule in one.rules}


def test_the_page_is_what_the_tests_say() -> None:
    """docs/faults.md is as `python -m tests.proof` writes it."""
    assert proof.PAGE.read_text("utf-8") == proof.page(), "run: python -m tests.proof"


def test_every_fault_test_says_what_it_proves() -> None:
    """A test of tests/faults says which fault it injects, and which promises that threatens."""
    of_faults = [(name, test) for module, name, test in proof.tests_of_all() if ".faults." in module.__name__]
    assert [name for name, test in of_faults if proof.proof(test) is None] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_can_be_taken_out(rule: Rule) -> None:
    """Its text stands in its module exactly once, and what is put there instead is Python too."""
    source = Path(str(importlib.import_module(rule.module).__file__)).read_text("utf-8")
    assert source.count(rule.text) == 1
    assert rule.text != rule.instead
    ast.parse(source.replace(rule.text, rule.instead))
