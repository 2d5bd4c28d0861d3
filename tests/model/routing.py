"""Routing: from a changed row to the documents that show it.

There are two posts, a tag, and a link to the tag that belongs to one post or does not exist. A post's document shows
the tag's name if the link belongs to that post. A worker looks up which posts a change affects. A change of the link
affects the post that it belonged to and the post that it belongs to. A change of the tag affects the post that the link
belongs to *now*. The answer may be out of date when it is used. That is harmless, since a link that changed meanwhile
has a change of its own. Here, a document is built and written in one step; `tests.model.writing` covers what may
happen in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_LINK, _TAG = "link", "tag"
_POSTS = (1, 2)
_COMMITS = 3


class Event(NamedTuple):
    """A change: the table, and of a link the post that it belonged to and the post that it belongs to; 0 for none."""

    table: str
    old: int = 0
    new: int = 0
    is_done: bool = False


class State(NamedTuple):
    """The state of the model."""

    link: int = 0  # the post that the link belongs to; 0 if there is no link
    tag: int = 0  # the tag's name: the number of the commit that set it; 0 if there is no tag
    commits: int = 0
    events: tuple[Event, ...] = ()
    shown: tuple[int, ...] = (0, 0)  # the name that each post shows in Elasticsearch
    workers: tuple[tuple[int, ...], ...] = ((), ())  # the number of its event, and the posts found; empty if idle


class Routing(Model[State]):
    """Every document that shows a changed row is found, even if rows on the path change meanwhile."""

    initial = State()
    identical = ("workers",)
    bounds = f"2 posts, a link, a tag, {_COMMITS} transactions, 2 workers"

    both_images: bool
    only_the_path_to_the_root: bool
    every_table_is_captured: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, worker, name in processes(state.workers, "worker"):
            if worker:
                number, posts_found = worker[0], worker[1:]
                shown = tuple(
                    _name(state, post) if post in posts_found else shown
                    for post, shown in zip(_POSTS, state.shown, strict=True)
                )
                successor = put(state, "events", number, state.events[number]._replace(is_done=True))
                action = f"{name} writes the posts that it found, and saves that change {number + 1} is handled"
                yield action, put(successor._replace(shown=shown), "workers", slot, ())
                continue
            for number, event in enumerate(state.events):
                if not event.is_done:
                    posts_found = self._affected(state, event)
                    posts = " and ".join(f"post {post}" for post in posts_found) or "no post"
                    action = f"{name} receives change {number + 1}, of the {event.table}, and finds {posts}"
                    yield action, put(state, "workers", slot, (number, *posts_found))

    def _affected(self, state: State, event: Event) -> tuple[int, ...]:
        if event.table == _TAG:
            return (state.link,) if state.link else ()
        if not self.only_the_path_to_the_root and not state.tag:
            return ()
        images = {event.old, event.new} if self.both_images else {event.new}
        return tuple(sorted(images - {0}))

    def world(self, state: State) -> Iterator[Step[State]]:
        for slot, worker, name in processes(state.workers, "worker"):
            if worker:
                yield f"{name} is killed", put(state, "workers", slot, ())
        if state.commits == _COMMITS:
            return
        number = state.commits + 1
        for post in (0, *_POSTS):
            if post != state.link:
                action = f"the link is assigned to post {post}" if post else "the link is deleted"
                yield action, self._commit(state, post, state.tag)
        yield f"the tag is named {number}", self._commit(state, state.link, number)
        if state.tag:
            yield "the tag is deleted", self._commit(state, state.link, 0)
        if state.tag and state.link:
            yield "the tag and the link are deleted in one transaction", self._commit(state, 0, 0)

    def _commit(self, state: State, link: int, tag: int) -> State:
        events = state.events
        if link != state.link and self.every_table_is_captured:
            events = (*events, Event(_LINK, state.link, link))
        if tag != state.tag:
            events = (*events, Event(_TAG))
        return state._replace(link=link, tag=tag, commits=state.commits + 1, events=events)

    def unequal(self, state: State) -> str | None:
        for post, shown in zip(_POSTS, state.shown, strict=True):
            if shown != _name(state, post):
                return f"post {post} shows name {shown} for good, and not {_name(state, post)}; 0 is none"
        return None


def _name(state: State, post: int) -> int:
    return state.tag if state.link == post else 0
