"""Metrics have the names that the page, the alerts and the dashboard use, and each alert has an entry in the manual."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from syncer.base import metrics
from syncer.base.metrics import CATALOGUE
from syncer.base.write_report import WriteReport

REPOSITORY = Path(__file__).parent.parent.parent
RULES_FILE = REPOSITORY / "config" / "prometheus" / "alerts.yml"
RULES = yaml.safe_load(RULES_FILE.read_text("utf-8"))
CASES = REPOSITORY / "tests" / "prometheus" / "alerts.yml"
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
MANUAL = (REPOSITORY / "docs" / "operating.md").read_text("utf-8")
SERIES = {series: metric for metric in CATALOGUE.values() for series in metric.series}
DURATION = re.compile(r"\d+[smhd]")
LOADED_IN = re.compile(r'\{\{ (printf "%.0f" \$value|\$labels\.\w+|\$value \| humanizeDuration) \}\}')


def test_what_is_scraped_is_what_the_catalogue_has() -> None:
    """Each metric by its name, its type and its labels, and no other of syncer's; each as Prometheus would have it."""
    everything: Any = {
        one: {tuple(f"{label}'s" for label in one.labels): 1.0} for one in CATALOGUE.values() if one.is_polled
    }
    metrics.handled([0.0], WriteReport(indexed=1), seconds=1)
    families = list(text_string_to_metric_families(metrics.render(everything).decode()))
    ours = {one.name: one for one in families if one.name.startswith("syncer_")}
    assert {(name + "_total" if one.type == "counter" else name, one.type) for name, one in ours.items()} == {
        (one.name, one.kind) for one in CATALOGUE.values()
    }
    for one in CATALOGUE.values():
        labels = {label for sample in ours[one.name.removesuffix("_total")].samples for label in sample.labels}
        assert labels - {"le"} <= set(one.labels)
        assert not one.is_polled or labels == set(one.labels)
        assert set(one.labels) & {"instance", "job"} == set(), "Prometheus would call it exported_… instead"
        assert re.fullmatch(r"syncer_[a-z]+(_[a-z]+)*", one.name)
        assert (one.kind == "counter") == one.name.endswith("_total")
    assert len(CATALOGUE) <= 22


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
    used = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
    named = re.findall(r"\bsyncer_\w+", rule["expr"])
    assert set(used) <= {"instance", "job"} | {label for name in named for label in SERIES[name].labels}
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


def test_every_alert_is_in_the_manual_and_no_other() -> None:
    """Under its name, with its meaning, what to check and what to do; the alert leads there."""
    sections = re.split(r"^### (\w+)\n", MANUAL, flags=re.MULTILINE)[1:]
    said = dict(zip(sections[::2], sections[1::2], strict=True))
    assert said.keys() == ALERTS.keys()
    for name, text in said.items():
        assert [part in text for part in ("**Meaning.**", "**Check.**", "**Action.**")] == [True] * 3
        assert ALERTS[name]["annotations"]["runbook"] == f"docs/operating.md#{name.lower()}"
    named = set(re.findall(r"`(syncer_\w+)`", MANUAL))
    assert named <= CATALOGUE.keys()


# The dashboard


def test_alerts_and_dashboard_use_every_metric_and_no_other() -> None:
    """Each query can be read by Prometheus; what nobody looks at need not be measured."""
    panels = json.loads((REPOSITORY / "config" / "grafana" / "syncer.json").read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    queries = [rule["expr"] for rule in ALERTS.values()]
    queries += [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for query in queries:
        promql_parser.parse(query.replace("$__rate_interval", "1m").replace("$__range", "1h"))
    used = {name for query in queries for name in re.findall(r"\bsyncer_\w+", query)}
    assert used <= SERIES.keys()
    assert {SERIES[name].name for name in used} == CATALOGUE.keys()
