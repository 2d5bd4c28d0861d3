"""Metrics have the names that the page, the alerts and the dashboard use, and the alerts have a runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from syncer.base import metrics
from syncer.base.metrics import CATALOGUE
from tests import dashboard, promql

REPOSITORY = Path(__file__).parent.parent.parent
RULES_FILE = REPOSITORY / "config" / "prometheus" / "alerts.yml"
RULES = yaml.safe_load(RULES_FILE.read_text("utf-8"))
CASES = REPOSITORY / "tests" / "prometheus" / "alerts.yml"
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
RUNBOOK = (REPOSITORY / "docs" / "runbook.md").read_text("utf-8")
DURATION = re.compile(r"\d+[smhd]")
LOADED_IN = re.compile(r'\{\{ (printf "%.0f" \$value|\$labels\.\w+|\$value \| humanizeDuration) \}\}')


def test_what_is_scraped_is_what_the_catalogue_has() -> None:
    """Each metric by its name, its type and its labels, and no other of syncer's; each as Prometheus would have it."""
    everything: Any = {
        one: {tuple(f"{label}'s" for label in one.labels): 1.0} for one in CATALOGUE.values() if one.is_polled
    }
    metrics.POLLED.show(everything)
    try:
        families = list(text_string_to_metric_families(metrics.render().decode()))
    finally:
        metrics.POLLED.show({})
    ours = {one.name: one for one in families if one.name.startswith("syncer_")}
    assert {(name + "_total" if one.type == "counter" else name, one.type) for name, one in ours.items()} == {
        (one.name, one.kind) for one in CATALOGUE.values()
    }
    for one in CATALOGUE.values():
        labels = {label for sample in ours[one.name.removesuffix("_total")].samples for label in sample.labels}
        assert labels - {"le"} <= set(one.labels)
        assert not one.is_polled or labels == set(one.labels)
        assert set(one.labels) & promql.OF_PROMETHEUS == set(), "Prometheus would call it exported_… instead"
        assert re.fullmatch(r"syncer_[a-z]+(_[a-z]+)+", one.name)
        assert (one.kind == "counter") == one.name.endswith("_total")


# Alerts


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_asks_for_what_there_is(name: str) -> None:
    """Its query names series and labels that exist, and what it says uses labels of its result."""
    rule = ALERTS[name]
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Syncer[A-Za-z]+", name)
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert DURATION.fullmatch(rule.get("for", "1m"))
    asked = promql.read(rule["expr"])
    used = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
    assert set(used) <= asked.labels
    assert "{" not in LOADED_IN.sub("", rule["annotations"]["summary"])


def test_every_alert_is_raised_when_it_should_be() -> None:
    """Each has a case in which it is silent and one in which it speaks; Prometheus' own promtool, if here, finds so."""
    cases = yaml.safe_load(CASES.read_text("utf-8"))["tests"]
    said = {(one["alertname"], bool(one.get("exp_alerts"))) for case in cases for one in case["alert_rule_test"]}
    assert said == {(name, is_raised) for name in ALERTS for is_raised in (False, True)}
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine; Debian has it: apt-get install prometheus")
    for arguments in (["check", "rules", str(RULES_FILE)], ["test", "rules", str(CASES)]):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_in_the_runbook_and_no_other() -> None:
    """Under its name, with its meaning, what to check and what to do; the alert leads there."""
    sections = re.split(r"^### (\w+)\n", RUNBOOK, flags=re.MULTILINE)[1:]
    said = dict(zip(sections[::2], sections[1::2], strict=True))
    assert said.keys() == ALERTS.keys()
    for name, text in said.items():
        assert [part in text for part in ("**Meaning.**", "**Check.**", "**Action.**")] == [True] * 3
        assert ALERTS[name]["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
    named = set(re.findall(r"`(syncer_\w+)`", RUNBOOK))
    assert named <= CATALOGUE.keys()


@pytest.mark.parametrize(
    "query",
    [
        "syncer_lag",
        "max(syncer_lag_seconds",
        'syncer_lag_seconds{kind="x"}',
        "max by (kind) (syncer_lag_seconds)",
        "up",
        "rate(syncer_relay_published_changes_total)",
        "rate(syncer_lag_seconds[1m])",
        "delta(syncer_relay_published_changes_total[1m])",
        "histogram_quantile(0.5, sum(rate(syncer_relay_batch_seconds_bucket[1m])))",
        "max by (server) (syncer_poll_is_answered) == 0 and max(syncer_lag_seconds) > 1",
        "vector(1)",
    ],
)
def test_a_query_for_what_there_is_not_is_found_out(query: str) -> None:
    """A name, a label, a bracket, a type; growth of what only grows by chance; two sides that are never a pair."""
    with pytest.raises(ValueError, match=r"is no|pair nothing|names no"):
        promql.read(query)


# The dashboard


def test_the_dashboard_asks_for_what_there_is() -> None:
    """Each query names series that exist, and each legend labels of its result."""
    panels = json.loads(dashboard.page())["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    for panel in panels:
        for target in panel.get("targets", ()):
            asked = promql.read(target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= asked.labels, target


def test_what_the_catalogue_has_is_shown_somewhere() -> None:
    """On the dashboard or in an alert: what nobody looks at need not be measured."""
    queries = [rule["expr"] for rule in ALERTS.values()]
    queries += [query for panels in dashboard.PANELS.values() for panel in panels for query in panel.queries.values()]
    seen = {metric.name for query in queries for metric in promql.read(query).metrics}
    assert CATALOGUE.keys() - seen == set()
