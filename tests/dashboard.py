"""The dashboard: panels of `syncer.base.metrics` for Grafana, as config/grafana/syncer.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from syncer.base.collectors import Question

_WIDTH, _COLUMNS, _HEIGHT = 24, 3, 8
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WHICH = '{instance=~"$instance"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Args:
        title: What it shows.
        queries: In PromQL, by what to call each.
        meaning: What it tells, and what is normal.
        unit: Grafana's name of its unit.
        kind: Grafana's name of its kind.
    """

    title: str
    queries: dict[str, str]
    meaning: str
    unit: str = "short"
    kind: str = "timeseries"


def _quantiles(name: str) -> dict[str, str]:
    rates = f"sum by (le) (rate({name}_bucket{_WHICH}[$__rate_interval]))"
    return {said: f"histogram_quantile({part}, {rates})" for said, part in (("median", 0.5), ("95th percentile", 0.95))}


def _rate(name: str, *by: str) -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} (rate({name}{_WHICH}[$__rate_interval]))"


def _per_batch(name: str) -> str:
    return f"{_rate(f'{name}_sum')} / {_rate(f'{name}_count')}"


_LABELS = "{{job_id}} {{kind}} {{document}}"
PANELS: dict[Question, tuple[Panel, ...]] = {
    Question.KEEPING_UP: (
        Panel(
            title="Lag",
            meaning=(
                "Age of the oldest committed change that is not indexed yet, in all and by document. It "
                "should return to 0."
            ),
            queries={
                "{{document}}": "max by (document) (syncer_lag_seconds)",
                "in the outbox": "max(syncer_outbox_lag_seconds)",
                "in the topic": "max(syncer_topic_lag_seconds)",
            },
            unit="s",
        ),
        Panel(
            title="Waiting changes",
            meaning="Committed changes that are not published, and published changes that no worker has handled.",
            queries={
                "in the outbox": "max(syncer_outbox_waiting_changes)",
                "in the topic": "sum(max by (partition) (syncer_topic_waiting_records))",
            },
        ),
        Panel(
            title="Waiting changes by partition",
            meaning=(
                "A partition that is longer than all others: one row changes all the time, or its worker is in trouble."
            ),
            queries={"{{partition}}": "max by (partition) (syncer_topic_waiting_records)"},
        ),
        Panel(
            title="From change to indexed",
            meaning="Median and 95th percentile of the time from a change until its documents are written.",
            queries=_quantiles("syncer_worker_commit_to_indexed_seconds"),
            unit="s",
        ),
        Panel(
            title="Changes per second",
            meaning="Published and handled changes. If fewer are handled than published, the topic grows.",
            queries={
                "published": _rate("syncer_relay_published_changes_total"),
                "handled": _rate("syncer_worker_handled_changes_total"),
            },
        ),
        Panel(
            title="Documents per second",
            meaning="Documents that live changes and jobs wrote, by outcome.",
            queries={
                "live, {{outcome}}": _rate("syncer_worker_written_documents_total", "outcome"),
                "jobs, {{outcome}}": _rate("syncer_job_worker_written_documents_total", "outcome"),
            },
        ),
        Panel(
            title="Time per batch",
            meaning="Mean time of a batch, and the part of a worker's batch that Postgres and Elasticsearch took.",
            queries={
                "relay": _per_batch("syncer_relay_batch_seconds"),
                "worker": _per_batch("syncer_worker_batch_seconds"),
                "of that, Postgres": _per_batch("syncer_worker_compose_seconds"),
                "of that, Elasticsearch": _per_batch("syncer_worker_index_seconds"),
            },
            unit="s",
        ),
        Panel(
            title="Jobs: remaining time",
            meaning="Time left for the documents that a job has listed so far.",
            queries={_LABELS: "max by (job_id, kind, document) (syncer_job_eta_seconds)"},
            unit="s",
        ),
        Panel(
            title="Jobs: progress",
            meaning="Share of the listed documents that a job has written. While a job lists, its share can fall.",
            queries={
                _LABELS: "max by (job_id, kind, document) (syncer_job_done_documents)"
                " / max by (job_id, kind, document) (syncer_job_documents)"
            },
            unit="percentunit",
        ),
        Panel(
            title="Jobs: documents per second",
            meaning="Speed of each unfinished job. A job slows down beside live changes.",
            queries={_LABELS: "max by (job_id, kind, document) (syncer_job_documents_per_second)"},
        ),
        Panel(
            title="Documents by index",
            meaning="Documents that a search of the index finds. During a rebuild, the new index grows.",
            queries={"{{document}} {{index}} {{role}}": "max by (document, index, role) (syncer_index_documents)"},
        ),
        Panel(
            title="Workers",
            meaning="Members of the consumer group, over all daemons. 0 means that changes stay in the topic.",
            queries={"workers": "max(syncer_worker_members)"},
        ),
    ),
    Question.STUCK: (
        Panel(
            title="Leader",
            meaning="1 for the daemon whose relay leads. Exactly one leads; if none does, changes stay in the outbox.",
            queries={"{{instance}}": f"syncer_relay_leads{_WHICH}", "any": "max(syncer_relay_leaders)"},
        ),
        Panel(
            title="Time since last progress",
            meaning=(
                "Time since a component last published, wrote or finished a chunk. It also grows if there "
                "is nothing to do: compare with the waiting changes."
            ),
            queries={"{{instance}} {{component}}": f"time() - syncer_component_progress_timestamp_seconds{_WHICH}"},
            unit="s",
        ),
        Panel(
            title="Retrying components",
            meaning="Components that keep retrying a failed operation. Their log line component.retried has the error.",
            queries={"{{instance}} {{component}}": f"syncer_component_is_troubled{_WHICH} == 1"},
        ),
        Panel(
            title="Servers that respond",
            meaning="1 if Postgres, Kafka or Elasticsearch responded to the last poll.",
            queries={"{{server}}": "max by (server) (syncer_poll_is_answered)"},
        ),
        Panel(
            title="Response time of the servers",
            meaning="Time that each server took to respond to the poll.",
            queries={"{{server}}": "max by (server) (syncer_poll_answer_seconds)"},
            unit="s",
        ),
        Panel(
            title="Oldest transaction",
            meaning="Age of the oldest open or prepared transaction. Its changes are not indexed until it commits.",
            queries={"{{kind}}": "max by (kind) (syncer_postgres_oldest_transaction_seconds)"},
            unit="s",
        ),
        Panel(
            title="Outbox size",
            meaning="Size of the outbox on disk. It shrinks when its published segments are truncated.",
            queries={"outbox": "max(syncer_outbox_bytes)"},
            unit="bytes",
        ),
        Panel(
            title="Suspended or incomplete",
            meaning="Documents that are not up to date until you act: suspended, or not loaded yet.",
            queries={
                "suspended: {{document}} {{index}}": "max by (document, index) (syncer_document_is_suspended) == 1",
                "not loaded: {{document}}": "max by (document) (syncer_document_is_incomplete) == 1",
            },
        ),
        Panel(
            title="Paused jobs",
            meaning="Jobs that are paused, or whose document is suspended.",
            queries={_LABELS: "max by (job_id, kind, document) (syncer_job_is_paused) == 1"},
        ),
    ),
    Question.WRONG: (
        Panel(
            title="Dead letters",
            meaning="Documents that could not be written and are stale. syncer dead-letters list shows the causes.",
            queries={"{{document}}": "max by (document) (syncer_document_dead_letters)"},
        ),
        Panel(
            title="New dead letters per second",
            meaning="Rate of new dead letters. A rise after a deployment suggests a wrong mapping or SELECT.",
            queries={"{{document}}": _rate("syncer_writer_dead_lettered_documents_total", "document")},
        ),
        Panel(
            title="Retries per second",
            meaning="Failed attempts that were retried, by component.",
            queries={"{{component}}": _rate("syncer_component_retries_total", "component")},
        ),
        Panel(
            title="Drift at the last verify",
            meaning="Documents that differed from their SELECT after the last full verify. It should be 0.",
            queries={"{{document}}": "max by (document) (syncer_verify_drifted_documents)"},
        ),
        Panel(
            title="Time since the last verify",
            meaning="Schedule verify weekly; an alert fires after eight days.",
            queries={"{{document}}": "time() - max by (document) (syncer_verify_timestamp_seconds)"},
            unit="s",
        ),
        Panel(
            title="Skipped writes",
            meaning=(
                "Share of the workers' writes that were skipped because the index had a newer version. "
                "Harmless, but wasted work."
            ),
            queries={
                "part": 'sum(rate(syncer_worker_written_documents_total{outcome="skipped"}[$__rate_interval]))'
                " / sum(rate(syncer_worker_written_documents_total[$__rate_interval]))"
            },
            unit="percentunit",
        ),
        Panel(
            title="Versions",
            meaning=(
                "Daemons by version of syncer and Python. More than one version of syncer means an unfinished upgrade."
            ),
            queries={"{{version}}, Python {{python}}": "count by (version, python) (syncer_build_info)"},
        ),
        Panel(
            title="Lost records and failovers",
            meaning=(
                "How often Kafka lost records, and the epoch, which grows with each failover or restore of Postgres."
            ),
            queries={
                "losses": "sum(syncer_topic_losses_total)",
                "epoch": "max(syncer_cluster_identity_epoch)",
            },
        ),
    ),
}


def _assigned(panel: Panel, number: int, *, x: int, y: int) -> dict[str, Any]:
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
    assigned: list[dict[str, Any]] = []
    y = 0
    for question, panels in PANELS.items():
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        assigned.append({"id": len(assigned) + 1, "type": "row", "title": question, "gridPos": place, "panels": []})
        for at, panel in enumerate(panels):
            row, column = divmod(at, _COLUMNS)
            assigned.append(_assigned(panel, len(assigned) + 1, x=column, y=y + 1 + row * _HEIGHT))
        y += 1 + -(-len(panels) // _COLUMNS) * _HEIGHT
    return assigned


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
                    "query": "label_values(syncer_poll_timestamp_seconds, instance)",
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
