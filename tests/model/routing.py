"""Routing: from a changed row to the documents that show it.

Two posts, a link that belongs to one of them or is not there, and a tag that the link leads to: a post's document
shows the tag's name if the link is its own. What is asked of a change is which posts it touches: of a link, whose it
was and whose it is; of a tag, whose link leads to it *now*. That the answer may be out of date when it is used does no
harm, since a link that has changed meanwhile has a change of its own. Documents are composed and written in one step
here: what may happen in between is the matter of `tests.model.writing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed

BOTH_IMAGES = Rule(
    name="both-images",
    says="a change has the row as it was and as it is",
    kept_by="syncer.trigger",
    otherwise="the document that a row has left goes on showing it",
)
ON_THE_PATH = Rule(
    name="only-the-path-to-the-root",
    says="what is not on the way from the changed row to the root is not asked about",
    kept_by="syncer.derivation",
    otherwise="a link that is deleted together with its tag finds no document, since it leads to no tag any more",
)
EVERY_TABLE = Rule(
    name="every-table-is-captured",
    says="each table on the way has changes of its own",
    kept_by="syncer.steps",
    otherwise="a document is asked for through a link that has come meanwhile, or never comes, and nobody tells",
)

_LINK, _TAG = "link", "tag"
_POSTS = (1, 2)


class Event(NamedTuple):
    """A change.

    Args:
        table: Which.
        old: Of a link: the post that it belonged to; 0 for none.
        new: To which it belongs.
        is_done: Whether its offset is committed.
    """

    table: str
    old: int
    new: int
    is_done: bool = False


class Routing(NamedTuple):
    """Everything.

    Args:
        link: The post that it belongs to; 0 if it is not there.
        tag: The tag's name, as the number of the commit that gave it; 0 if it is not there.
        commits: How many there have been.
        events: What they have told.
        shown: Which name each post shows in Elasticsearch.
        workers: Of each, the number of its event, and then the posts that it has found; or nothing.
    """

    link: int
    tag: int
    commits: int
    events: tuple[Event, ...]
    shown: tuple[int, ...]
    workers: tuple[tuple[int, ...], ...]


class RoutingModel(Model[Routing]):
    """Which documents does a change touch?"""

    name = "routing"
    about = "every document that shows a changed row is found, through rows that change meanwhile"
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
            who = f"worker {'AB'[at]}"
            if not hand:
                for number, event in enumerate(state.events):
                    if not event.is_done:
                        found = self._touched(state, event)
                        said = " and ".join(f"post {one}" for one in found) or "no post"
                        yield (
                            f"{who} receives change {number + 1}, of the {event.table}, and finds {said}",
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
                    f"{who} writes what it has found, and commits the offset of change {number + 1}",
                    state._replace(shown=shown, events=events, workers=workers),
                )

    def _touched(self, state: Routing, event: Event) -> tuple[int, ...]:
        if event.table == _TAG:
            return (state.link,) if state.link else ()
        # Rule only-the-path-to-the-root: the SELECT's other joins are dropped, in `syncer.derivation`.
        if not self.keeps(ON_THE_PATH) and not state.tag:
            return ()
        # Rule both-images: `Change.images`, as the triggers write them.
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
                says = f"the link is given to post {post}" if post else "the link is deleted"
                yield says, self._commit(state, post, state.tag)
        yield f"the tag is named {number}", self._commit(state, state.link, number)
        if state.tag:
            yield "the tag is deleted", self._commit(state, state.link, 0)
        if state.tag and state.link:
            yield "the tag and the link are deleted in one transaction", self._commit(state, 0, 0)

    def _commit(self, state: Routing, link: int, tag: int) -> Routing:
        events = state.events
        # Rule every-table-is-captured: `Plan.captures`.
        if link != state.link and self.keeps(EVERY_TABLE):
            events = (*events, Event(_LINK, state.link, link))
        if tag != state.tag:
            events = (*events, Event(_TAG, 0, 0))
        return state._replace(link=link, tag=tag, commits=state.commits + 1, events=events)

    def unlevel(self, state: Routing) -> str | None:
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
