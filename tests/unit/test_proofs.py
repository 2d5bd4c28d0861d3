"""The fault matrix says what the tests do, and each rule that it names can be taken out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests import mutations, proof
from tests.model import catalogue, explorer
from tests.proof import Rule

RULES = {f"{module.__name__}.{name}: {rule.name}": rule for module, name, one in proof.proofs() for rule in one.rules}


def test_every_fault_test_says_what_it_proves() -> None:
    """A test of tests/faults says which fault it injects, and which guarantees that threatens."""
    of_faults = [(name, test) for module, name, test in proof.tests_of_all() if ".faults." in module.__name__]
    assert [name for name, test in of_faults if proof.proof(test) is None] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_can_be_taken_out(rule: Rule) -> None:
    """What it patches is there, and its replacement fits."""
    assert mutations.misfit(rule.patch, rule.instead) is None
    assert mutations.decoded(rule.mutation()["instead"]) == rule.instead


@pytest.mark.parametrize("rule", [one for _, one in catalogue.RULES], ids=lambda one: one.name)
def test_a_rule_of_the_protocol_is_named_at_the_line_that_keeps_it(rule: explorer.Rule) -> None:
    """By the one name that the model, the matrix and the code have for it."""
    source = Path(str(importlib.import_module(rule.kept_by).__file__)).read_text("utf-8")
    assert re.search(rf"Rules?:[\sa-z,-]*\b{rule.name}\b", source), f"{rule.kept_by} has no comment: Rule: {rule.name}"
