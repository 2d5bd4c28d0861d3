"""``python -m tests.benchmarks backfill verify --posts 100000``: measure, print a table, keep the figures.

The sandbox is one of its own, unless SYNCER_TEST_SANDBOX names the folder of one that is to be used.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from syncer.sandbox import Sandbox
from tests.benchmarks.blog import Blog
from tests.benchmarks.contest import Contest
from tests.benchmarks.measures import MEASURES
from tests.conftest import KEPT_SANDBOX
from tests.harness import World

_RESULTS = Path(__file__).parent / "results"
_KEPT_MAX = 20


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=MEASURES, metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--posts", type=int, default=100_000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="add the figures to tests/benchmarks/results")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        kept = os.environ.get(KEPT_SANDBOX)
        sandbox = Sandbox(Path(kept) if kept else Path(folder) / "servers")
        world = World(sandbox=sandbox, endpoints=sandbox.start(), folder=Path(folder))
        blog = Blog(world=world, posts=asked.posts)
        try:
            blog.make()
            for name in asked.names:
                _measure(name, blog, asked.passes, keep=asked.keep)
        finally:
            world.unmake()
            if not kept:
                sandbox.stop()


def _measure(name: str, blog: Blog, passes: int, *, keep: bool) -> None:
    measure = MEASURES[name]
    load = os.getloadavg()[0]  # what others do on this machine is seen in every figure
    contest = measure.hold(blog, passes)
    ratios = {f"{one} / {other}": round(contest.ratio(one, other), 3) for one, other in measure.ratios}
    _show(f"{name}: {blog.posts:,} posts, {measure.about}, median of {passes}", contest, ratios)
    if keep:
        _keep(
            name,
            {
                "posts": blog.posts,
                "passes": passes,
                "load_before": round(load, 1),
                "ratios": ratios,
                "runs": contest.as_json(),
            },
        )


def _show(title: str, contest: Contest, ratios: dict[str, float]) -> None:
    table = Table("", "documents/s", "peak MB", box=None)
    for name, run in contest.as_json().items():
        table.add_row(name, f"{run['documents_per_second']:,}", str(run["peak_megabytes"]))
    console = Console(file=sys.stdout, width=120)
    console.print(title)
    console.print(table)
    for name, ratio in ratios.items():
        console.print(f"{name} = {ratio:.2f}")


def _keep(name: str, found: dict[str, Any]) -> None:
    """Add these figures to those of before."""
    file = _RESULTS / f"{name}.json"
    history = json.loads(file.read_text()) if file.exists() else []
    measured_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    history.append({"measured_at": measured_at, "cpus": os.cpu_count(), "python": platform.python_version(), **found})
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(history[-_KEPT_MAX:], indent=1) + "\n")


if __name__ == "__main__":
    main()
