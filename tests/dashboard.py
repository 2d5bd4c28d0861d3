"""The dashboard: panels of `syncer.metrics` for Grafana, as config/grafana/syncer.json, a row for each question."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncer.collectors import Question

FILE = Path(__file__).parent.parent / "config" / "grafana" / "syncer.json"
_WIDTH, _COLUMNS, _HEIGHT = 24, 3, 8
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WHICH = '{instance=~"$instance"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Args:
        title: What it shows.
        queries: In PromQL, by what to call each.
        unit: Grafana's name of its unit.
        meaning: What to make of it.
        kind: Grafana's name of its kind.
    """

    title: str
    queries: dict[str, str]
    unit: str = "short"
    meaning: str = ""
    kind: str = "timeseries"


def _quantiles(name: str) -> dict[str, str]:
    rates = f"sum by (le) (rate({name}_bucket{_WHICH}[$__rate_interval]))"
    return {said: f"histogram_quantile({part}, {rates})" for said, part in (("half", 0.5), ("19 of 20", 0.95))}


def _rate(name: str, *by: str) -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} (rate({name}{_WHICH}[$__rate_interval]))"


def _per_batch(name: str) -> str:
    return f"{_rate(f'{name}_sum')} / {_rate(f'{name}_count')}"


_LABELS = "{{job_id}} {{kind}} {{document}}"
PANELS: dict[Question, tuple[Panel, ...]] = {
    Question.KEEPING_UP: (
        Panel(
            title="How far behind",
            queries={
                "all": "max(syncer_lag_seconds)",
                "in the outbox": "max(syncer_outbox_lag_seconds)",
                "in the topic": "max(syncer_topic_lag_seconds)",
            },
            unit="s",
        ),
        Panel(
            title="What waits",
            queries={
                "in the outbox": "max(syncer_outbox_waiting_changes)",
                "in the topic": "sum(max by (partition) (syncer_topic_waiting_records))",
            },
        ),
        Panel(
            title="What waits, by partition",
            queries={"{{partition}}": "max by (partition) (syncer_topic_waiting_records)"},
            meaning="One that is longer than all others: one row is changed all the time, or its worker is in trouble.",
        ),
        Panel(title="From commit to indexed", queries=_quantiles("syncer_worker_commit_to_indexed_seconds"), unit="s"),
        Panel(
            title="From commit to searchable",
            queries=_quantiles("syncer_worker_commit_to_searchable_seconds"),
            unit="s",
            meaning="A sample: one document of each daemon now and then.",
        ),
        Panel(
            title="Changes per second",
            queries={
                "published": _rate("syncer_relay_published_changes_total"),
                "handled": _rate("syncer_worker_handled_changes_total"),
            },
        ),
        Panel(
            title="Documents per second",
            queries={
                "live, {{outcome}}": _rate("syncer_worker_written_documents_total", "outcome"),
                "jobs, {{outcome}}": _rate("syncer_refresher_written_documents_total", "outcome"),
            },
        ),
        Panel(
            title="A batch takes",
            queries={
                "relay": _per_batch("syncer_relay_batch_seconds"),
                "worker": _per_batch("syncer_worker_batch_seconds"),
                "of that, Postgres": _per_batch("syncer_worker_compose_seconds"),
                "of that, Elasticsearch": _per_batch("syncer_worker_index_seconds"),
            },
            unit="s",
        ),
        Panel(
            title="Jobs: how long yet",
            queries={_LABELS: "max by (job_id, kind, document) (syncer_job_eta_seconds)"},
            unit="s",
        ),
        Panel(
            title="Jobs: how far",
            queries={
                _LABELS: "max by (job_id, kind, document) (syncer_job_done_documents)"
                " / max by (job_id, kind, document) (syncer_job_documents)"
            },
            unit="percentunit",
        ),
        Panel(
            title="Jobs: documents per second",
            queries={_LABELS: "max by (job_id, kind, document) (syncer_job_documents_per_second)"},
        ),
        Panel(
            title="Documents in each index",
            queries={"{{document}} {{index}} {{role}}": "max by (document, index, role) (syncer_index_documents)"},
        ),
        Panel(title="Workers in the group", queries={"workers": "max(syncer_worker_members)"}),
    ),
    Question.STUCK: (
        Panel(
            title="Who leads",
            queries={"{{instance}}": f"syncer_relay_leads{_WHICH}", "any": "max(syncer_relay_leaders)"},
        ),
        Panel(
            title="Since a stage has last done something",
            queries={"{{instance}} {{stage}}": f"time() - syncer_stage_progress_timestamp_seconds{_WHICH}"},
            unit="s",
            meaning="A stage with nothing to do does nothing: look at what waits.",
        ),
        Panel(title="Stages in trouble", queries={"{{instance}} {{stage}}": f"syncer_stage_is_troubled{_WHICH} == 1"}),
        Panel(title="Servers that answer", queries={"{{server}}": "max by (server) (syncer_survey_is_answered)"}),
        Panel(
            title="How long they take to answer",
            queries={"{{server}}": "max by (server) (syncer_survey_answer_seconds)"},
            unit="s",
        ),
        Panel(
            title="The oldest transaction",
            queries={"{{kind}}": "max by (kind) (syncer_postgres_oldest_transaction_seconds)"},
            unit="s",
        ),
        Panel(title="What the outbox takes", queries={"outbox": "max(syncer_outbox_bytes)"}, unit="bytes"),
        Panel(
            title="Documents that are halted, take nothing for now, or are not filled",
            queries={
                "halted: {{document}} {{index}}": "max by (document, index) (syncer_document_is_halted) == 1",
                "takes nothing: {{document}} {{index}}": "max by (document, index) (syncer_document_is_unwell) == 1",
                "not filled: {{document}}": "max by (document) (syncer_document_is_unfilled) == 1",
            },
        ),
        Panel(
            title="Jobs that are paused",
            queries={_LABELS: "max by (job_id, kind, document) (syncer_job_is_paused) == 1"},
        ),
    ),
    Question.WRONG: (
        Panel(title="Dead letters", queries={"{{document}}": "max by (document) (syncer_document_dead_letters)"}),
        Panel(
            title="Parked per second",
            queries={"{{document}}": _rate("syncer_writer_parked_documents_total", "document")},
        ),
        Panel(title="Tried again, per second", queries={"{{stage}}": _rate("syncer_stage_retries_total", "stage")}),
        Panel(
            title="Drift at the last verify",
            queries={"{{document}}": "max by (document) (syncer_verify_drifted_documents)"},
        ),
        Panel(
            title="Since the last verify",
            queries={"{{document}}": "time() - max by (document) (syncer_verify_timestamp_seconds)"},
            unit="s",
        ),
        Panel(
            title="Superseded, of all that workers write",
            queries={
                "part": 'sum(rate(syncer_worker_written_documents_total{outcome="superseded"}[$__rate_interval]))'
                " / sum(rate(syncer_worker_written_documents_total[$__rate_interval]))"
            },
            unit="percentunit",
        ),
        Panel(
            title="Records that are no changes",
            queries={
                "to be decided on": "max(syncer_topic_unreadable_records)",
                "per second": _rate("syncer_worker_unreadable_records_total"),
            },
        ),
        Panel(
            title="Losses of Kafka, lives of the database",
            queries={
                "losses": "sum(syncer_topic_losses_total)",
                "epoch": "max(syncer_incarnation_epoch)",
            },
        ),
    ),
}


def _drawn(panel: Panel, number: int, *, x: int, y: int) -> dict[str, Any]:
    width = _WIDTH // _COLUMNS
    return {
        "id": number,
        "title": panel.title,
        "description": panel.meaning,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": {"x": x * width, "y": y, "w": width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": query, "legendFormat": said, "datasource": _SOURCE}
            for at, (said, query) in enumerate(panel.queries.items())
        ],
    }


def _panels() -> list[dict[str, Any]]:
    drawn: list[dict[str, Any]] = []
    y = 0
    for question, panels in PANELS.items():
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        drawn.append({"id": len(drawn) + 1, "type": "row", "title": question, "gridPos": place, "panels": []})
        for at, panel in enumerate(panels):
            row, column = divmod(at, _COLUMNS)
            drawn.append(_drawn(panel, len(drawn) + 1, x=column, y=y + 1 + row * _HEIGHT))
        y += 1 + -(-len(panels) // _COLUMNS) * _HEIGHT
    return drawn


def page() -> str:
    """The file."""
    board = {
        "title": "syncer",
        "uid": "syncer",
        "description": "Is it keeping up, is anything stuck, is anything wrong? See docs/runbook.md.",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["syncer"],
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "label": "Daemon",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": "label_values(syncer_survey_timestamp_seconds, instance)",
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                },
            ]
        },
        "panels": _panels(),
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(page(), "utf-8")
