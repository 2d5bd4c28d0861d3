"""Figures on the pages of the documentation are those that the benchmarks last kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.benchmarks.report import RESULTS
from tests.support.world import REPOSITORY


def last(measure: str) -> Any:
    """What was last kept of a measure."""
    return json.loads((RESULTS / f"{measure}.json").read_text("utf-8"))[-1]


def figure(measure: str, what: str) -> float:
    """One of its figures."""
    (found,) = (one["value"] for one in last(measure)["figures"] if one["what"] == what)
    return float(found)


def processor_milliseconds(measure: str) -> dict[str, float]:
    """The processor time of a change, all servers included, by rate."""
    kept = last(measure)["cpu_milliseconds_per_change"]
    return {pace: sum(kept[pace].values()) for pace in kept}


EDITS = last("latency")["milliseconds"]
RENAMING, RESTING = (last("isolation")["milliseconds"][name] for name in ("during one rename", "at rest"))
BUSY = sum(value for name, value in last("latency")["cpu_milliseconds_per_change"].items() if "looking" not in name)
LOAD = processor_milliseconds("load")
MEMORY = max(
    one["value"]
    for file in RESULTS.glob("*.json")
    for one in last(file.stem)["figures"]
    if one["what"].startswith("peak memory") and "250" in one["goal"]
)
README = {
    "one edit": f"median {EDITS['visible, 50/s']['p50']:.0f} ms",
    "one edit, the slowest": f"p99 {EDITS['visible, 50/s']['p99']:.0f} ms; a bare bulk request and its GET take "
    f"{EDITS['a bare bulk request of one document, and its GET']['p50']:.1f} ms",
    "searchable": f"median {EDITS['searchable, 50/s']['p50'] / 1000:.1f} s",
    "a rename": f"5,000 posts in {figure('fan-out', 'commit to last document, 5,000 posts'):.1f} s",
    "five renames": f"write {figure('fan-out', 'five renames / one, documents written'):.2f} times",
    "a large rename": f"100,000 posts at {figure('fan-out', 'one rename / bare loop'):.2f} of the speed",
    "changes waiting": f"| {figure('drain', 'syncer drain / bare loop'):.2f} of the speed of the bare loop |",
    "edits meanwhile": f"median {RENAMING['p50']:.0f} ms, at rest {RESTING['p50']:.0f} ms | "
    f"p99 {RENAMING['p99']:.0f} ms, at rest {RESTING['p99']:.0f} ms",
    "triggers": f"{figure('application', 'triggers, no daemon / no triggers'):.2f} of the rate without triggers",
    "triggers, cores shared": f"{figure('application', 'triggers and daemon / no triggers'):.2f} remains",
    "a large UPDATE": f"{figure('application', '100,000 rows at once, seconds with / without'):.1f} times as long",
    "processor time, batched": f"{LOAD['1000']:.1f} ms at 1,000 a second",
    "processor time": f"{LOAD['50']:.0f} to {BUSY:.0f} ms at 50 a second",
    "memory": f"at most {MEMORY:.0f} MB per daemon",
    "backfill, rebuild": f"{figure('backfill', 'syncer backfill / bare loop'):.2f} and "
    f"{figure('rebuild', 'syncer rebuild, filling / bare loop'):.2f} of the speed",
}
SIZING = {
    pace: " | ".join(f"{kept[server]:.{digits}f}" for server in ("itself", "Postgres", "Kafka", "Elasticsearch"))
    for pace, digits in (("50", 1), ("200", 1), ("1000", 2))
    for kept in [last("load")["cpu_milliseconds_per_change"][pace]]
}
PEER = last("pgsync")["runs"]


def flink(what: str, *, digits: int) -> str:
    """A row of the table about Flink: syncer's figure, and Flink's."""
    return " | ".join(f"{figure('flink', f'{name}: {what}'):.{digits}f}" for name in ("syncer", "Flink"))


COMPARISON = (
    " | ".join(
        "p50 {:.0f} ms, p99 {:.0f} ms".format(
            *(figure("flink", f"{name}: commit to visible, 50/s, {one}") for one in ("p50", "p99"))
        )
        for name in ("syncer", "Flink")
    ),
    flink("processor time of an edit, servers too", digits=1).replace(" |", " ms |") + " ms",
    flink("documents that differ, after concurrent changes", digits=0),
    flink("documents missing meanwhile, of 100 that are edited", digits=0),
    " | ".join(f"{figure('flink', f'peak memory of {name}'):,.0f} MB" for name in ("syncer", "Flink")),
    " | ".join(f"{PEER[one]['documents_per_second']:,} a second" for one in ("syncer drain", "PGSync drain")),
    f"{PEER['syncer, one rename']['seconds'][0]:.1f} s | {PEER['PGSync, one rename']['seconds'][0]:.1f} s",
)


MEANWHILE = last("isolation")["documents_per_second_meanwhile"]["during one rename"]
FILL = round(last("rebuild")["runs"]["syncer rebuild"]["documents_per_second"], -2)
EXAMPLE = (
    f"200 \N{MULTIPLICATION SIGN} {LOAD['200']:.1f} ms = {200 * LOAD['200'] / 1000:.1f} processors",
    f"1,000 \N{MULTIPLICATION SIGN} {LOAD['1000']:.1f} ms = {LOAD['1000']:.1f}:",
    f"about {100_000 / MEANWHILE:.0f} s for 100,000 documents",
    f"2,000,000 ÷ {FILL:,.0f} a second = about {2_000_000 / FILL / 60:.0f} minutes",
    f"leave {figure('application', 'triggers, no daemon / no triggers'):.2f} of the rate of single-row transactions",
    f"100,000 rows takes {figure('application', '100,000 rows at once, seconds with / without'):.1f} times as long",
)
FAQ = (
    f"after {EDITS['visible, 50/s']['p50']:.0f} ms, and 99 of 100 after {EDITS['visible, 50/s']['p99']:.0f} ms",
    f"in our benchmark from {RESTING['p99']:.0f} to {RENAMING['p99']:.0f} ms",
)
PAGES = {
    "README.md": README.values(),
    "docs/sizing.md": (*SIZING.values(), *EXAMPLE),
    "docs/comparison.md": COMPARISON,
    "docs/faq.md": FAQ,
}


@pytest.mark.parametrize(("page", "text"), [(page, text) for page, texts in PAGES.items() for text in texts])
def test_a_figure_on_a_page_is_the_kept_one(page: str, text: str) -> None:
    """As the benchmark last kept it, rounded."""
    assert text in (REPOSITORY / page).read_text("utf-8")
