"""Catalogue: all models, and what is said of them in docs/protocol.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.doorbell import DoorbellModel
from tests.model.explorer import Explored, Model, Rule, explore
from tests.model.fanning import FanningModel
from tests.model.halting import HaltingModel
from tests.model.incarnations import IncarnationsModel
from tests.model.reindexing import ReindexingModel
from tests.model.relaying import RelayingModel
from tests.model.replaying import ReplayingModel
from tests.model.routing import RoutingModel
from tests.model.sweeping import SweepingModel
from tests.model.writing import WritingModel

MODELS: tuple[type[Model[Any]], ...] = (
    WritingModel,
    RoutingModel,
    RelayingModel,
    DoorbellModel,
    SweepingModel,
    FanningModel,
    ReindexingModel,
    HaltingModel,
    IncarnationsModel,
    ReplayingModel,
)
RULES = tuple((model, rule) for model in MODELS for rule in model.rules)
BEYOND = tuple((model, name) for model in MODELS for name in model.beyond)


def kept(model: type[Model[Any]], *, is_large: bool = False) -> Explored:
    """Explore a model as it is."""
    return explore(model(is_large=is_large))


def broken(model: type[Model[Any]], rule: Rule) -> Explored:
    """Explore it without a rule."""
    return explore(model(without=(rule.name,)))


def surpassed(model: type[Model[Any]], name: str) -> Explored:
    """Explore it with something that it does not bear."""
    return explore(model(allowed=(name,)))


def page() -> Iterator[str]:
    """The generated part of docs/protocol.md, by lines."""
    yield "| model | what it shows | how far it goes | states | steps |"
    yield "|---|---|---|---:|---:|"
    for model in MODELS:
        found = kept(model)
        yield f"| {model.name} | {model.about} | {model().bounds} | {found.states:,} | {found.transitions:,} |"
    yield ""
    for model in MODELS:
        yield f"### {model.name}: {model.about}"
        yield ""
        yield "| rule | kept by | without it | shortest way there |"
        yield "|---|---|---|---:|"
        for rule in model.rules:
            trace = broken(model, rule).trace
            steps = f"{len(trace.steps)} steps" if trace else "none"
            yield f"| **{rule.says}** (`{rule.name}`) | `{rule.kept_by}` | {rule.otherwise} | {steps} |"
        yield ""
    yield "### What it does not bear"
    yield ""
    yield "| what happens | shortest way to what is wrong then |"
    yield "|---|---:|"
    for model, name in BEYOND:
        trace = surpassed(model, name).trace
        steps = f"{len(trace.steps)} steps" if trace else "none"
        yield f"| {model.name}: {model.beyond[name]} (`{name}`) | {steps} |"
