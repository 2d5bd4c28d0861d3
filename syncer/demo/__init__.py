"""The demo: a blog with a renamed author, or the guide's models one by one.

Everything in it is real: the servers of a sandbox of its own, the daemon as a process, the commands as you would type
them. It ends with `syncer verify`, whose result is the demo's.

    stage     servers, daemon, commands; begins and ends every demo
    blog      the blog of thousands of posts
    guide     the models of the guide, from guide.yaml
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syncer.base.errors import ConfigError
from syncer.demo import blog, guide
from syncer.demo.guide import models
from syncer.demo.stage import perform


def play(console: Console, names: Sequence[str], *, keep: bool, with_kafka: bool, opensearch: str | None) -> bool:
    """Play these models of the guide on the same servers, or without names the blog; return what `perform` does.

    Raises:
        ConfigError: There is no model of that name.
        SyncerError: A part of it failed; the servers are stopped.
    """
    if unknown := [name for name in names if name not in models()]:
        raise ConfigError(
            f"There is no model {unknown[0]}",
            hint=f"The models: {', '.join(models())}\nsyncer demo --list says what each is for.",
        )
    shown = [models()[name] for name in dict.fromkeys(names)]
    played = partial(guide.play, shown=shown) if shown else blog.play
    return perform(console, played, keep=keep, with_kafka=with_kafka, opensearch=opensearch)


def list_models(console: Console) -> None:
    """Print each model's question, its price, and when to choose it."""
    table = Table("model", "answers", "its price", "when to choose it", box=None, pad_edge=False, header_style="bold")
    for model in models().values():
        table.add_row(model.name, *map(escape, (model.question, model.price, model.choice)))
    console.print(table)
    console.print("To see one: syncer demo MODEL; to see syncer at work on thousands of posts: syncer demo")
