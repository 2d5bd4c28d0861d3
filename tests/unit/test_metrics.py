"""Metrics have the names that the page, the alerts and the dashboard use, and each alert has an entry in the manual."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import promql_parser
import pytest
import yaml

from syncer.base.metrics import MEASURED, Metric
from syncer.monitoring.gauges import GAUGES
from tests.support.world import REPOSITORY

RULES_FILE = REPOSITORY / "config" / "prometheus" / "alerts.yml"
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]}
CASES = REPOSITORY / "tests" / "prometheus" / "alerts.yml"
MANUAL = (REPOSITORY / "docs" / "operating.md").read_text("utf-8")
CATALOGUE = {metric.name: metric for metric in (*GAUGES, *MEASURED)}


def series(metric: Metric) -> list[str]:
    """The names that a query may use."""
    suffixes = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
    return [metric.name + suffix for suffix in suffixes]


SERIES = {name: metric for metric in CATALOGUE.values() for name in series(metric)}


def test_alerts_and_dashboard_use_every_metric_and_no_other() -> None:
    """Each query can be read by Prometheus, names are as it has them; what is shown nowhere need not be measured.

    That a daemon exports what is declared is shown by `tests.e2e.test_web`.
    """
    for metric in CATALOGUE.values():
        assert re.fullmatch(r"syncer_[a-z]+(_[a-z]+)*", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert set(metric.labels) & {"instance", "job"} == set(), "Prometheus would call it exported_… instead"
    assert len(CATALOGUE) <= 22
    panels = json.loads((REPOSITORY / "config" / "grafana" / "syncer.json").read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    queries = [rule["expr"] for rule in ALERTS.values()]
    queries += [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for query in queries:
        promql_parser.parse(query.replace("$__rate_interval", "1m").replace("$__range", "1h"))
    used = {name for query in queries for name in re.findall(r"\bsyncer_\w+", query)}
    assert used <= SERIES.keys()
    assert {SERIES[name].name for name in used} == CATALOGUE.keys()
    for rule in ALERTS.values():
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) - {"instance", "job"}
        assert labels <= {label for name in re.findall(r"\bsyncer_\w+", rule["expr"]) for label in SERIES[name].labels}


def test_every_alert_is_in_the_manual_and_no_other() -> None:
    """Under its name, with its meaning, what to check and what to do; the alert leads there."""
    sections = re.split(r"^### (\w+)\n", MANUAL, flags=re.MULTILINE)[1:]
    entries = dict(zip(sections[::2], sections[1::2], strict=True))
    assert entries.keys() == ALERTS.keys()
    for name, text in entries.items():
        assert [heading in text for heading in ("**Meaning.**", "**Check.**", "**Action.**")] == [True] * 3
        assert ALERTS[name]["annotations"]["runbook"] == f"docs/operating.md#{name.lower()}"
    assert set(re.findall(r"`(syncer_\w+)`", MANUAL)) <= CATALOGUE.keys()
    critical = [name for name, rule in ALERTS.items() if rule["labels"]["severity"] == "critical"]
    assert re.findall(r"^\| \[(\w+)\]", MANUAL, flags=re.MULTILINE) == critical


def test_every_alert_is_raised_when_it_should_be() -> None:
    """Each has a case in which it is silent and one in which it is raised; promtool, if it is here, finds so."""
    tests = [test for case in yaml.safe_load(CASES.read_text("utf-8"))["tests"] for test in case["alert_rule_test"]]
    cases = {(test["alertname"], bool(test.get("exp_alerts"))) for test in tests}
    assert cases == {(name, is_raised) for name in ALERTS for is_raised in (False, True)}
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine; Debian has it: apt-get install prometheus")
    for arguments in (["check", "rules", str(RULES_FILE)], ["test", "rules", str(CASES)]):
        completed = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stdout + completed.stderr
