"""What a query of PromQL names: its metrics, with the labels that it asks of each, and the labels that it groups by."""

from __future__ import annotations

import re
from dataclasses import dataclass

from syncer.metrics import CATALOGUE, Metric

OF_PROMETHEUS = frozenset({"instance", "le"})
"""Labels that Prometheus itself gives to a series."""
_SERIES: dict[str, Metric] = {series: metric for metric in CATALOGUE.values() for series in metric.series}
_TOKEN = re.compile(
    r"""(?P<name>syncer_\w+)(?:\{(?P<matchers>[^}]*)\})?    # a metric, and what it asks of it
    |\b(?:by|without|on|ignoring)\s*\((?P<labels>[^)]*)\)   # labels
    """,
    re.VERBOSE,
)
_MATCHER = re.compile(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"\s*(?:,|$)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a query names.

    Args:
        metrics: The metrics.
        labels: The labels that its result has.
    """

    metrics: tuple[Metric, ...]
    labels: frozenset[str]


def read(query: str) -> Named:
    """Read a query.

    Raises:
        ValueError: It names a metric or a label that is none, or its brackets do not match.
    """
    _require_brackets(query)
    found: list[Metric] = []
    asked, grouped = set[str](), set[str]()
    for token in _TOKEN.finditer(query):
        if token["labels"] is not None:
            grouped |= {one.strip() for one in token["labels"].split(",")}
            continue
        metric = _SERIES.get(token["name"])
        if metric is None:
            raise ValueError(f"{token['name']} is no series")
        found.append(metric)
        asked |= _labels(token["matchers"] or "", metric)
    if not found:
        raise ValueError(f"it names no metric: {query}")
    own = {label for metric in found for label in metric.labels} | OF_PROMETHEUS
    if not asked | grouped <= own:
        raise ValueError(f"{sorted((asked | grouped) - own)} is no label of {[one.name for one in found]}")
    is_one = re.match(r"\s*(sum|max|min|absent|histogram_quantile)\s*\(", query) and not grouped
    return Named(metrics=tuple(found), labels=frozenset(grouped or (() if is_one else own)))


def _labels(matchers: str, metric: Metric) -> set[str]:
    rest, names = matchers, set[str]()
    while rest.strip():
        one = _MATCHER.match(rest)
        if one is None or one[1] not in {*metric.labels, *OF_PROMETHEUS}:
            raise ValueError(f"{metric.name} has no {rest}")
        names.add(one[1])
        rest = rest[one.end() :]
    return names


def _require_brackets(query: str) -> None:
    opened = []
    for one in re.sub(r'"[^"]*"', "", query):
        if one in "([{":
            opened.append(one)
        elif one in ")]}" and (not opened or opened.pop() + one not in ("()", "[]", "{}")):
            raise ValueError(f"its brackets do not match: {query}")
    if opened:
        raise ValueError(f"its brackets do not match: {query}")
