"""What can be measured: who runs, on which index, and whose ratio to whom says how fast it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.benchmarks.blog import Blog
from tests.benchmarks.contest import Contest, Contestant, hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure.

    Args:
        about: What it does, and to an index in which state.
        hold: Measures it in so many passes.
        ratios: Pairs of contestants.
    """

    about: str
    hold: Callable[[Blog, int], Contest]
    ratios: tuple[tuple[str, str], ...]


def _backfill(blog: Blog, passes: int) -> Contest:
    filled = {name: blog.index_like_it(name) for name in ("bare", "two", "four")}
    blog.bare_loop(filled["bare"])
    blog.ceiling(filled["two"], 2)
    blog.ceiling(filled["four"], 4)
    contestants = [
        Contestant(
            name="syncer backfill",
            run=partial(blog.syncer, "backfill", "blogpost"),
            prepare=partial(blog.settle, blog.world.alias),
        ),
        Contestant(
            name="bare loop",
            run=partial(blog.bare_loop, filled["bare"]),
            prepare=partial(blog.settle, filled["bare"]),
        ),
        Contestant(
            name="2 in flight",
            run=partial(blog.ceiling, filled["two"], 2),
            prepare=partial(blog.settle, filled["two"]),
        ),
        Contestant(
            name="4 in flight",
            run=partial(blog.ceiling, filled["four"], 4),
            prepare=partial(blog.settle, filled["four"]),
        ),
    ]
    return hold(contestants, passes=passes, best_of={"ceiling": ("2 in flight", "4 in flight")})


def _rebuild(blog: Blog, passes: int) -> Contest:
    """Everybody writes an empty index."""
    contestants = [
        Contestant(
            name="syncer rebuild",
            run=partial(blog.syncer, "backfill", "blogpost", "--rebuild"),
            prepare=blog.drop_standby,
            parts={"syncer rebuild, filling": blog.fill_seconds},
        ),
        Contestant(
            name="bare loop",
            run=lambda: blog.bare_loop(f"{blog.world.alias}-bare"),
            prepare=lambda: blog.settle(blog.index_like_it("bare")),
        ),
        Contestant(
            name="ceiling",
            run=lambda: blog.ceiling(f"{blog.world.alias}-four", 4),
            prepare=lambda: blog.settle(blog.index_like_it("four")),
        ),
    ]
    return hold(contestants, passes=passes, best_of={})


def _verify(blog: Blog, passes: int) -> Contest:
    prepare = partial(blog.settle, blog.world.alias)
    contestants = [
        Contestant(name=f"syncer {name}", run=partial(blog.syncer, name, "blogpost"), prepare=prepare)
        for name in ("verify", "backfill")
    ]
    return hold(contestants, passes=passes, best_of={})


MEASURES = {
    "backfill": Measure(
        about="existing documents overwritten",
        hold=_backfill,
        ratios=(("syncer backfill", "bare loop"), ("syncer backfill", "ceiling"), ("bare loop", "ceiling")),
    ),
    "rebuild": Measure(
        about="an empty index filled; with and without verification and alias",
        hold=_rebuild,
        ratios=(
            ("syncer rebuild, filling", "bare loop"),
            ("syncer rebuild", "bare loop"),
            ("syncer rebuild, filling", "ceiling"),
            ("bare loop", "ceiling"),
        ),
    ),
    "verify": Measure(
        about="documents compared; the backfill overwrites them",
        hold=_verify,
        ratios=(("syncer verify", "syncer backfill"),),
    ),
}
