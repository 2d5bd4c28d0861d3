"""The catalogue: all models, and the generated part of docs/protocol.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.cleaning_up import CleaningUpModel
from tests.model.cluster_identities import ClusterIdentitiesModel
from tests.model.explorer import Explored, Model, Rule, explore
from tests.model.fanning import FanningModel
from tests.model.progressing import ProgressingModel
from tests.model.reindexing import ReindexingModel
from tests.model.relaying import RelayingModel
from tests.model.routing import RoutingModel
from tests.model.suspending import SuspendingModel
from tests.model.writing import WritingModel

MODELS: tuple[type[Model[Any]], ...] = (
    WritingModel,
    RoutingModel,
    RelayingModel,
    CleaningUpModel,
    FanningModel,
    ReindexingModel,
    SuspendingModel,
    ClusterIdentitiesModel,
    ProgressingModel,
)
RULES = tuple((model, rule) for model in MODELS for rule in model.rules)
BEYOND = tuple((model, name) for model in MODELS for name in model.beyond)


def kept(model: type[Model[Any]], *, is_large: bool = False) -> Explored:
    """Explore a model with all its rules."""
    return explore(model(is_large=is_large))


def broken(model: type[Model[Any]], rule: Rule) -> Explored:
    """Explore a model without one rule."""
    return explore(model(without=(rule.name,)))


def surpassed(model: type[Model[Any]], name: str) -> Explored:
    """Explore a model with an event that the protocol does not survive."""
    return explore(model(allowed=(name,)))


def page() -> Iterator[str]:
    """Yield the generated part of docs/protocol.md, line by line."""
    yield "| model | what it shows | bounds | states | steps |"
    yield "|---|---|---|---:|---:|"
    for model in MODELS:
        found = kept(model)
        yield f"| {model.name} | {model.about} | {model().bounds} | {found.states:,} | {found.transitions:,} |"
    yield ""
    for model in MODELS:
        yield f"### {model.name}: {model.about}"
        yield ""
        yield "| rule | kept by | without it | shortest path |"
        yield "|---|---|---|---:|"
        for rule in model.rules:
            trace = broken(model, rule).trace
            steps = f"{len(trace.steps)} steps" if trace else "none"
            yield f"| **{rule.says}** (`{rule.name}`) | `{rule.kept_by}` | {rule.otherwise} | {steps} |"
        yield ""
    yield "### Known limits"
    yield ""
    yield "| event | shortest path to the violation |"
    yield "|---|---:|"
    for model, name in BEYOND:
        trace = surpassed(model, name).trace
        steps = f"{len(trace.steps)} steps" if trace else "none"
        yield f"| {model.name}: {model.beyond[name]} (`{name}`) | {steps} |"
