"""Measure, print figures beside goals, and keep the figures if asked to.

With no names, everything is measured but what takes very long. The servers are a sandbox's: one of its own, or the one
in the folder that SYNCER_TEST_SANDBOX names, which is left running.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from syncer.sandbox import Sandbox
from syncer.sandbox.server import LASTING_JAVA
from tests.benchmarks import bulk_work, failovers, locks, one_edit, peers, shapes, single_edits, staleness
from tests.benchmarks.report import Figure, Report, SkippedError, keep, say, text
from tests.benchmarks.world import Bench, servers_folder
from tests.conftest import KEPT_SANDBOX
from tests.support.world import VERSIONS

BENCHMARKS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "fill": bulk_work.fill,
    "replica": bulk_work.replica,
    "backfill": bulk_work.backfill,
    "refresh": bulk_work.refresh,
    "rebuild": bulk_work.rebuild,
    "verify": bulk_work.verify,
    "audit": bulk_work.audit,
    "sources": bulk_work.sources,
    "drain": bulk_work.drain,
    "fan-out": bulk_work.fan_out,
    "latency": single_edits.latency,
    "load": single_edits.load,
    "one-edit": one_edit.one_edit,
    "isolation": single_edits.isolation,
    "application": single_edits.application,
    "pgsync": peers.pgsync,
    "flink": peers.flink,
    "staleness": staleness.staleness,
    "staleness-links": staleness.staleness_links,
    "locks": locks.locks,
    "shapes": shapes.shapes,
    "failover": failovers.failover,
    "search-servers": bulk_work.search_servers,
    "growth": bulk_work.growth,
}
_BY_NAME_ONLY = ("growth", "failover", "search-servers", "shapes", "staleness", "staleness-links")


def main() -> None:
    """Measure what was asked for; exit code 0 if every goal is reached."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a package that is installed is compiled
    asked = _arguments()
    is_missed = False
    with _sandbox() as sandbox, ExitStack() as stack:
        bench = Bench(sandbox, sandbox.start(), asked.posts, asked.passes, asked.seconds, asked.to, stack)
        bench.tables, bench.beside, bench.contestants = asked.tables, asked.beside, asked.contestants
        for name in asked.names or [name for name in BENCHMARKS if name not in _BY_NAME_ONLY]:
            say(f"measuring {name}")
            bench.report = Report(contestants=bench.contestants)
            try:
                bench.report.figures += BENCHMARKS[name](bench)
            except SkippedError as error:
                say(f"{name} is left out: {error}")
                continue
            measured = bench.report.as_json()
            print(f"\n{text(name, measured)}")  # noqa: T201 - it is a command
            is_missed |= any(figure["reached"] is False for figure in measured["figures"])
            if asked.keep:
                keep(name, measured)
    sys.exit(is_missed)


def _arguments() -> argparse.Namespace:
    lines = [
        f"  {name:<12} {(run.__doc__ or '').splitlines()[0]}{' Only if named.' if name in _BY_NAME_ONLY else ''}"
        for name, run in BENCHMARKS.items()
    ]
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["benchmarks:", *lines, "", "a quick trial: --posts 10000 --passes 1 --seconds 5"]),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure, in this order (below)")
    parser.add_argument("--posts", type=int, default=100_000, help="documents of each measure (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=3, help="runs of each contestant (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="how long single edits go on (default: %(default)s)")
    parser.add_argument(
        "--to", type=int, default=0, help="documents that growth ends with (default: ten times --posts)"
    )
    parser.add_argument("--tables", type=int, default=1400, help="tables of shapes (default: %(default)s)")
    parser.add_argument("--beside", metavar="COMMIT", default="", help="shapes, failover: measure this commit, too")
    parser.add_argument("--contestants", nargs="*", default=(), help="of staleness, by name (default: all)")
    parser.add_argument("--keep", action="store_true", help="add the figures to results/ and to docs/benchmarks.md")
    asked = parser.parse_args()
    if unknown := set(asked.names) - BENCHMARKS.keys():
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    return asked


@contextmanager
def _sandbox() -> Iterator[Sandbox]:
    """The sandbox; its Java servers, unless they run already, are started for a long time."""
    kept_folder = os.environ.get(KEPT_SANDBOX)
    with servers_folder() as folder:
        sandbox = Sandbox(Path(kept_folder) if kept_folder else folder, versions=VERSIONS)
        sandbox.elasticsearch.java_options = sandbox.kafka.java_options = LASTING_JAVA
        try:
            yield sandbox
        finally:
            if not kept_folder:
                sandbox.stop()


if __name__ == "__main__":
    main()
