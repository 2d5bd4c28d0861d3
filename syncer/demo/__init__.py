"""The demo: a blog with a renamed author, or the guide's models one by one.

Everything in it is real: the servers of a sandbox of its own, the daemon as a process, the commands as you would type
them. It ends with `syncer verify`, whose result is the demo's.

    scene     servers, daemon, commands; begins and ends every demo
    blog      the blog of thousands of posts
    lesson    shows a model of the guide:              model  its parts       guide    the models themselves
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syncer.base.errors import ConfigError
from syncer.demo import blog, lesson
from syncer.demo.guide import MODELS
from syncer.demo.scene import perform


def play(console: Console, *, keep: bool, posts: int) -> bool:
    """Play the blog, whose famous author has so many posts; return what `syncer.demo.scene.perform` does.

    Raises:
        SyncerError: A part of it failed; the servers are stopped.
    """
    return perform(console, partial(blog.play, posts=posts), keep=keep)


def play_models(console: Console, names: Sequence[str], *, keep: bool) -> bool:
    """Play models of the guide one after the other on the same servers; return what `perform` does.

    Raises:
        ConfigError: There is no model of that name.
        SyncerError: A part of it failed; the servers are stopped.
    """
    for name in names:
        if name not in MODELS:
            raise ConfigError(
                f"There is no model {name}",
                hint=f"The models: {', '.join(MODELS)}\nsyncer demo --list says what each is for.",
            )
    return perform(console, partial(lesson.play, models=[MODELS[name] for name in dict.fromkeys(names)]), keep=keep)


def list_models(console: Console) -> None:
    """Print each model's question, its price, and when to choose it."""
    table = Table("model", "answers", "its price", "when to choose it", box=None, pad_edge=False, header_style="bold")
    for model in MODELS.values():
        table.add_row(model.name, *(escape(said) for said in (model.question, model.price, model.choice)))
    console.print(table)
    console.print("To see one: syncer demo MODEL; to see syncer at work on thousands of posts: syncer demo")
