"""Measure, print tables beside goals, and keep the figures if asked to.

With no names, everything is measured but what takes very long. The servers are a sandbox's: one of its own, or the one
in the folder that SYNCER_TEST_SANDBOX names, which is left running.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from syncer.sandbox import Sandbox
from syncer.sandbox.server import LASTING_JAVA
from tests.benchmarks.blog import Blogs
from tests.benchmarks.contest import say
from tests.benchmarks.measures import MEASURES
from tests.benchmarks.options import Options
from tests.benchmarks.report import SkippedError, described, keep, show
from tests.conftest import KEPT_SANDBOX

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH = 140


def main() -> None:
    """Measure what was asked for; exit code 0 if every goal is reached."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a package that is installed is compiled
    asked = _arguments()
    options = Options(passes=asked.passes, seconds=asked.seconds, is_profiled=asked.profile)
    names = asked.names or [name for name, one in MEASURES.items() if not one.by_name_only]
    console = Console(file=sys.stderr if asked.json else sys.stdout, width=_WIDTH)
    found: dict[str, Any] = {}
    with _sandbox() as sandbox:
        blogs = Blogs(sandbox=sandbox, endpoints=sandbox.start(), posts=asked.posts)
        try:
            for name in names:
                load = os.getloadavg()[0]  # what others do on this machine is seen in every figure
                say(f"measuring {name}")
                try:
                    outcome = MEASURES[name].run(blogs, options)
                except SkippedError as error:
                    console.print(f"\n[bold]{name}[/bold] is left out: {error}", highlight=False)
                    continue
                found[name] = described(outcome, load_before=load)
                show(name, outcome, console)
                if asked.keep:
                    keep(name, found[name])
        finally:
            blogs.close()
    if asked.json:
        json.dump(found, sys.stdout, indent=1)
    missed = any(figure["reached"] is False for one in found.values() for figure in one["figures"])
    sys.exit(1 if missed else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="measures:\n"
        + "\n".join(
            f"  {name:<12} {one.about}{' (only if it is named)' if one.by_name_only else ''}"
            for name, one in MEASURES.items()
        )
        + "\n\nexit code 0 only if every goal is reached"
        + "\nquick, to see that all works: --posts 10000 --passes 1 --seconds 5",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure, in this order (below)")
    parser.add_argument("--posts", type=int, default=100_000, help="documents of each measure (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=3, help="runs of each contestant (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=30, help="how long edits at an even pace go on (default: %(default)s)"
    )
    parser.add_argument("--profile", action="store_true", help="say which of the daemon's threads take its time")
    parser.add_argument("--json", action="store_true", help="print JSON; the tables go to standard error")
    parser.add_argument(
        "--keep", action="store_true", help="add the figures to tests/benchmarks/results and to docs/benchmarks.md"
    )
    asked = parser.parse_args()
    if unknown := set(asked.names) - MEASURES.keys():
        parser.error(f"there is no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    return asked


@contextmanager
def _sandbox() -> Iterator[Sandbox]:
    if kept := os.environ.get(KEPT_SANDBOX):
        yield _lasting(Sandbox(Path(kept)))
        return
    with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        sandbox = _lasting(Sandbox(Path(folder) / "servers"))
        try:
            yield sandbox
        finally:
            sandbox.stop()


def _lasting(sandbox: Sandbox) -> Sandbox:
    """The same sandbox, whose Java servers, unless they run already, are started for a long time."""
    sandbox.elasticsearch.java_options = sandbox.kafka.java_options = LASTING_JAVA
    return sandbox


if __name__ == "__main__":
    main()
