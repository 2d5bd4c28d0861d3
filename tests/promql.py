"""What a query of PromQL asks for: its metrics, and the labels that its result has.

Read by a parser that knows the types of PromQL's functions. Beyond that, a query is held against the catalogue: each
series and each label is there, growth is asked of counters alone, and two sides of an operator have the same labels,
without which Prometheus pairs nothing and says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import promql_parser
from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    LabelModifierType,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    StringLiteral,
    SubqueryExpr,
    ValueType,
    VectorSelector,
)

from syncer.base.collectors import Metric
from syncer.base.metrics import CATALOGUE

OF_PROMETHEUS = frozenset({"job", "instance"})
"""Labels that Prometheus itself gives to a series: where a metric has one of that name, it is called another."""
_SERIES: dict[str, Metric] = {series: metric for metric in CATALOGUE.values() for series in metric.series}
_GROWTH = frozenset({"rate", "irate", "increase"})
_DIFFERENCE = frozenset({"delta", "idelta", "deriv"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a query asks for.

    Args:
        metrics: The metrics.
        labels: The labels that its result has.
    """

    metrics: tuple[Metric, ...]
    labels: frozenset[str]


def read(query: str) -> Asked:
    """Read a query.

    Raises:
        ValueError: It is no PromQL, or asks for what there is not.
    """
    try:
        parsed = promql_parser.parse(query.replace("$__rate_interval", "1m"))  # which Grafana loads in
    except ValueError as error:
        raise ValueError(f"it is no PromQL: {error}: {query}") from error
    found: list[Metric] = []
    labels = _labels(parsed, found)
    if not found:
        raise ValueError(f"it names no metric: {query}")
    return Asked(metrics=tuple(found), labels=labels or frozenset())


def _labels(one: Expr, found: list[Metric]) -> frozenset[str] | None:
    """The labels of what an expression results in, None for a plain number; notes its metrics."""
    match one:
        case VectorSelector() | MatrixSelector():
            return _of_series(one.vector_selector if isinstance(one, MatrixSelector) else one, found)
        case ParenExpr() | SubqueryExpr():
            return _labels(one.expr, found)
        case AggregateExpr():
            return _of_aggregate(one, found)
        case Call():
            return _of_call(one, found)
        case BinaryExpr():
            return _of_pair(one, found)
        case NumberLiteral() | StringLiteral():
            return None
    raise ValueError(f"what a {type(one).__name__} results in is not known here")


def _of_series(one: VectorSelector, found: list[Metric]) -> frozenset[str]:
    metric = _SERIES.get(one.name or "")
    if metric is None:
        raise ValueError(f"{one.name} is no series")
    found.append(metric)
    own = frozenset(metric.labels) | OF_PROMETHEUS | ({"le"} if str(one.name).endswith("_bucket") else set())
    _require({each.name for each in one.matchers.matchers}, own)
    return own


def _of_aggregate(one: AggregateExpr, found: list[Metric]) -> frozenset[str]:
    own = _labels(one.expr, found) or frozenset()
    if one.modifier is None:
        return frozenset()
    named = frozenset(one.modifier.labels)
    _require(named, own)
    return named if one.modifier.type == AggModifierType.By else own - named


def _of_call(one: Call, found: list[Metric]) -> frozenset[str] | None:
    sides = [_labels(each, found) for each in one.args]
    labels = next((each for each in sides if each is not None), frozenset[str]())
    name = one.func.name
    if name == "absent":
        return frozenset()
    if name == "histogram_quantile":
        _require({"le"}, labels)
        return labels - {"le"}
    if name in _GROWTH | _DIFFERENCE and (found[-1].kind == "gauge") != (name in _DIFFERENCE):
        raise ValueError(f"{name} is not for a {found[-1].kind}: {one.prettify()}")
    return None if one.func.return_type == ValueType.Scalar else labels


def _of_pair(one: BinaryExpr, found: list[Metric]) -> frozenset[str] | None:
    left, right = _labels(one.lhs, found), _labels(one.rhs, found)
    if left is None or right is None:
        return right if left is None else left
    matching = one.modifier.matching if one.modifier else None
    named = frozenset(matching.labels) if matching else frozenset()
    _require(named, left & right)
    by_name = matching is not None and matching.type == LabelModifierType.Include
    if not by_name and left - named != right - named:
        raise ValueError(f"{sorted(left)} and {sorted(right)} pair nothing: {one.prettify()}")
    return left


def _require(named: set[str] | frozenset[str], own: frozenset[str]) -> None:
    if not named <= own:
        raise ValueError(f"{sorted(named - own)} is no label of it: it has {sorted(own)}")
