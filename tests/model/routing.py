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

from tests.model.explorer import Model, Rule, Step, placed

BOTH_IMAGES = Rule(
    name="both-images",
    says="a change contains the row as it was and as it is",
    kept_by="syncer.base.model",
    otherwise="the document that a row used to belong to keeps showing it",
)
ON_THE_PATH = Rule(
    name="only-the-path-to-the-root",
    says="the lookup of affected documents uses only the tables on the path from the changed row to the root",
    kept_by="syncer.lineage.build",
    otherwise="a link that is deleted together with its tag affects no document, because the tag is gone",
)
EVERY_TABLE = Rule(
    name="every-table-is-captured",
    says="every table on the path is captured",
    kept_by="syncer.apply.captures",
    otherwise="a row on the path changes, and no event leads to the documents that it connects or disconnects",
)

_LINK, _TAG = "link", "tag"
_POSTS = (1, 2)


class Event(NamedTuple):
    """A change.

    Args:
        table: The table of the changed row.
        old: For a link, the post that it belonged to; 0 for none.
        new: For a link, the post that it belongs to; 0 for none.
        is_done: Whether its offset is committed.
    """

    table: str
    old: int
    new: int
    is_done: bool = False


class Routing(NamedTuple):
    """The state of the model.

    Args:
        link: The post that the link belongs to; 0 if there is no link.
        tag: The tag's name: the number of the commit that set it; 0 if there is no tag.
        commits: How many commits there have been.
        events: Their events.
        shown: The name that each post shows in Elasticsearch.
        workers: For each worker, the number of its event and the posts that it found; empty if it is idle.
    """

    link: int
    tag: int
    commits: int
    events: tuple[Event, ...]
    shown: tuple[int, ...]
    workers: tuple[tuple[int, ...], ...]


class RoutingModel(Model[Routing]):
    """Find the documents that a change affects."""

    name = "routing"
    about = "every document that shows a changed row is found, even if rows on the path change meanwhile"
    rules = (BOTH_IMAGES, ON_THE_PATH, EVERY_TABLE)

    def prepare(self) -> None:
        self._commits = 4 if self.is_large else 3

    @property
    def bounds(self) -> str:
        return f"2 posts, a link, a tag, {self._commits} transactions, 2 workers"

    def initial(self) -> Routing:
        return Routing(link=0, tag=0, commits=0, events=(), shown=(0, 0), workers=((), ()))

    def protocol(self, state: Routing) -> Iterator[Step[Routing]]:
        for at, hand in enumerate(state.workers):
            name = f"worker {'AB'[at]}"
            if not hand:
                for number, event in enumerate(state.events):
                    if not event.is_done:
                        found = self._touched(state, event)
                        said = " and ".join(f"post {one}" for one in found) or "no post"
                        yield (
                            f"{name} receives change {number + 1}, of the {event.table}, and finds {said}",
                            state._replace(workers=placed(state.workers, at, (number, *found))),
                        )
            else:
                number, found = hand[0], hand[1:]
                shown = tuple(
                    _name(state, post) if post in found else state.shown[place] for place, post in enumerate(_POSTS)
                )
                events = placed(state.events, number, state.events[number]._replace(is_done=True))
                workers = placed(state.workers, at, ())
                yield (
                    f"{name} writes the posts that it found, and commits the offset of change {number + 1}",
                    state._replace(shown=shown, events=events, workers=workers),
                )

    def _touched(self, state: Routing, event: Event) -> tuple[int, ...]:
        if event.table == _TAG:
            return (state.link,) if state.link else ()
        # Rule only-the-path-to-the-root: `syncer.lineage.build` drops the other joins of the SELECT.
        if not self.keeps(ON_THE_PATH) and not state.tag:
            return ()
        # Rule both-images: the triggers write both images, `Change.parse` reads them.
        images = {event.old, event.new} if self.keeps(BOTH_IMAGES) else {event.new}
        return tuple(sorted(images - {0}))

    def world(self, state: Routing) -> Iterator[Step[Routing]]:
        for at, hand in enumerate(state.workers):
            if hand:
                yield f"worker {'AB'[at]} is killed", state._replace(workers=placed(state.workers, at, ()))
        if state.commits == self._commits:
            return
        number = state.commits + 1
        for post in (0, *_POSTS):
            if post != state.link:
                says = f"the link is assigned to post {post}" if post else "the link is deleted"
                yield says, self._commit(state, post, state.tag)
        yield f"the tag is named {number}", self._commit(state, state.link, number)
        if state.tag:
            yield "the tag is deleted", self._commit(state, state.link, 0)
        if state.tag and state.link:
            yield "the tag and the link are deleted in one transaction", self._commit(state, 0, 0)

    def _commit(self, state: Routing, link: int, tag: int) -> Routing:
        events = state.events
        # Rule every-table-is-captured: `captures.captures`.
        if link != state.link and self.keeps(EVERY_TABLE):
            events = (*events, Event(_LINK, state.link, link))
        if tag != state.tag:
            events = (*events, Event(_TAG, 0, 0))
        return state._replace(link=link, tag=tag, commits=state.commits + 1, events=events)

    def unequal(self, state: Routing) -> str | None:
        for place, post in enumerate(_POSTS):
            if state.shown[place] != _name(state, post):
                return (
                    f"post {post} shows {_said(state.shown[place])} for good, and should show "
                    f"{_said(_name(state, post))}"
                )
        return None

    def canonical(self, state: Routing) -> Routing:
        one, two = state.workers
        return state if one <= two else state._replace(workers=(two, one))


def _name(state: Routing, post: int) -> int:
    return state.tag if state.link == post else 0


def _said(name: int) -> str:
    return f"name {name}" if name else "no name"
