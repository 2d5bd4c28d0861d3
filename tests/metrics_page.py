"""The page of metrics: what `syncer.metrics` has of each, as docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from syncer import health
from syncer.collectors import Metric, Question
from syncer.metrics import CATALOGUE
from syncer.searchable import GIVE_UP_SECONDS

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

_INTRODUCTION = """\
# Metrics

Each daemon serves its own at `/metrics`, as Prometheus reads them. What a stage of that daemon has done is counted as
it is done. What is *surveyed* is asked of the servers every `metrics.seconds`, and is the same in every daemon: take
`max` of it over all of them, not `sum`. What a server does not say is left out, and not shown as it was before.

The rules in [`config/prometheus/alerts.yml`](../config/prometheus/alerts.yml) and the dashboard in
[`config/grafana/syncer.json`](../config/grafana/syncer.json) are made of these; [the runbook](runbook.md) says what to
do about each alert.

**What a label can be**: a document, an index, a stage, a partition, a server, the number of a job that is not finished,
and words that are named here. No value of a row is one, so there is no end of series only where there is no end of
documents.

**What they cost**: a batch some tens of microseconds, up to 0.1 ms if it has 2000 changes. The survey asks Postgres,
Kafka and Elasticsearch a handful of questions, and takes a tenth of the time at most: while its questions take long,
it asks less often.

## From commit to indexed, from commit to searchable

`syncer_worker_commit_to_indexed_seconds` has every live change. It begins when the statement ran that changed the row,
by the clock of Postgres, and ends when the batch is done, by the clock of the daemon. Postgres does not say when a
transaction was committed; so a transaction that goes on after that statement makes the figure greater, never less. A
change that became a job ends when the job is made: `syncer_job_eta_seconds` has the rest.

What is indexed is not yet what a search finds: Elasticsearch shows it after its next refresh. That is measured where it
is seen. Every `metrics.searchable_seconds` each daemon takes one document that it has just written, and searches for it
by id until it is found, with that version or a greater one: `syncer_worker_indexed_to_searchable_seconds` is the time
from the answer to the bulk request, `syncer_worker_commit_to_searchable_seconds` that from the oldest change of its
batch. A look is apart from the next by a twentieth of the time that has passed, so that the figure is 5 % too great at
most. A document that is not found within {give_up:.0f} s counts as nothing: it may have been deleted.

It is a sample, and it costs a score of small searches each time, and one thing more: an index that nobody has searched
for 30 s is not refreshed by Elasticsearch until somebody does, and this is somebody. Set it to 0 for an index that is
written much and searched seldom.

## Alive, and ready

`/healthz` is whether the process goes on: each of its stages has asked lately whether it is to stop, or waits for an
answer that may take as long as it likes, such as the listing of a whole document. After {hang:.0f} s without either it
is not well, and a restart is the mend. A server that is away makes nobody unwell: its stages go on trying.

`/readyz` is whether it can do its work: all its stages have begun, it was not told to stop, and each server that it
needs has answered the last survey, Postgres with a schema of this program. It names the one that has not, and why.
"""


def _rows(metrics: Iterator[Metric]) -> Iterator[str]:
    yield "| metric | type | labels | asked of | meaning |"
    yield "|---|---|---|---|---|"
    for one in metrics:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        where = "the servers" if one.is_surveyed else "this daemon"
        yield f"| `{one.name}` | {one.kind} | {labels} | {where} | {one.meaning} |"


def page() -> str:
    """The page."""
    lines = [_INTRODUCTION.format(give_up=GIVE_UP_SECONDS, hang=health.HANG_SECONDS)]
    for question in Question:
        lines += [f"## {question}\n", *_rows(one for one in CATALOGUE.values() if one.question is question), ""]
    lines.append("Beside these there are those of the process itself: `process_cpu_seconds_total` and the like.\n")
    lines.append("This page is written by `python -m tests.metrics_page`, from `syncer/metrics.py`.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
