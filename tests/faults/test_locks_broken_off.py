"""Changes under a lock that are broken off, refused, sent twice or too late: all of a change is made, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from elasticsearch import ConflictError, ConnectionError as NoConnectionError, ConnectionTimeout, Elasticsearch

from syncer.base.errors import LockError, LockLostError, UnavailableError
from syncer.locks import Edit, Locks, Recovery
from syncer.locks.names import Mode
from syncer.locks.registry import ensure
from syncer.sandbox import Endpoints
from tests.harness import DEADLINE_SECONDS, wait_until
from tests.locking import PAIR
from tests.locking.owners import fail_at, held_up, lockers
from tests.locking.pair import pair_index, set_pair, values
from tests.locking.rules import BROKEN_OFF, UNSURE
from tests.mutations import DOES_NOTHING
from tests.mutations.locks import keeps_the_intent, one_term_for_all, rolls_nothing_back
from tests.proof import Rule, faces


@pytest.fixture
def index(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with two documents that are equal; each is a page of its own."""
    monkeypatch.setattr("syncer.locks.held._PAGE_CHANGES_MAX", 1)
    with pair_index(endpoints.elasticsearch_url) as name:
        yield name


def pages(client: Elasticsearch, index: str) -> int:
    """How many pages of intents are kept."""
    client.indices.refresh(index=f"{index}-locks-intents")
    return int(client.count(index=f"{index}-locks-intents")["count"])


@faces("a change of two documents is broken off between them, by an exception", guarantees=(), without=BROKEN_OFF)
@pytest.mark.parametrize(("recovery", "found"), [(Recovery.FINISH, (7, 7)), (Recovery.ROLL_BACK, (0, 0))])
def test_a_change_that_is_broken_off_is_finished_or_rolled_back(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch, recovery: Recovery, found: tuple[int, ...]
) -> None:
    """Nobody has the lock before it is; nothing of it is kept; and who broke it off can lock again."""
    with lockers(endpoints, index, recovery=recovery) as (first, second):
        fail_at(monkeypatch, first._fence, "write", KeyboardInterrupt(), turn=2)
        with suppress(KeyboardInterrupt), first.everything() as held:
            try:
                set_pair(held, index, 7)
            finally:
                with pytest.raises(LockLostError):
                    set_pair(held, index, 8)
        with second.everything():
            assert values(second._client, index) == found
        with first.everything() as held:
            set_pair(held, index, 9)
        assert pages(first._client, index) == 0


@faces(
    "the holder of a lock freezes between two documents, no process wants the lock, and it continues",
    guarantees=(),
    without=BROKEN_OFF,
)
def test_who_stood_still_alone_leaves_nothing_half_done(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is over by its own clock alone: it does not give back what others must find and finish."""
    with lockers(endpoints, index) as (first, second), ThreadPoolExecutor() as pool:
        come, go = held_up(monkeypatch, first, "write")

        def change() -> None:
            with first.everything() as held:
                set_pair(held, index, 7)

        late = pool.submit(change)
        assert come.wait(DEADLINE_SECONDS)
        wait_until(lambda: first._lease.is_over, what="its lease is over")
        go.set()
        with pytest.raises(LockLostError):
            late.result()
        with second.everything():
            assert values(second._client, index) == (7, 7)


@faces(
    "a holder whose change is refused dies before it has rolled it back, and its successor finishes what is left",
    guarantees=(),
    without=Rule(
        "what cannot be finished is rolled back", patch="syncer.locks.burial:_write_page", instead=rolls_nothing_back
    ),
)
def test_what_cannot_be_finished_is_rolled_back(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or nothing, whoever does it: what Elasticsearch refuses to the dead it refuses to the living."""
    with lockers(endpoints, index) as (first, second):
        fail_at(monkeypatch, first._fence, "write", KeyboardInterrupt(), turn=3)  # the first page, taken back
        with pytest.raises(KeyboardInterrupt), first.everything() as held:
            held.write(
                [
                    Edit(index=index, id=PAIR[0], source={"value": 7}),
                    Edit(index=index, id=PAIR[1], source={"value": "no number"}),
                ]
            )
        with second.everything():
            assert values(second._client, index) == (0, 0)


@faces(
    "a request of a holder's first change is delayed, and comes after its second one",
    guarantees=(),
    without=Rule(
        "each page is written in a term of its own",
        patch="syncer.locks.held:HeldLocks._next_term",
        instead=one_term_for_all,
    ),
)
def test_a_request_that_comes_late_undoes_nothing_of_its_own_holders(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent again because it was not answered; by the time it arrives the documents have moved on."""
    with lockers(endpoints, index) as (first, _), first.everything() as held:
        write, sent = first._fence.write, []

        def write_and_note(changes: list[Edit], *, term: int) -> LockError | None:
            sent.append((changes, term))
            return write(changes, term=term)

        monkeypatch.setattr(first._fence, "write", write_and_note)
        set_pair(held, index, 7)
        late = list(sent)
        set_pair(held, index, 8)
        for changes, term in late:
            write(changes, term=term)
        assert values(first._client, index) == (8, 8)


@faces(
    "a recovery fails after it has finished the change, and the next one is set to roll back",
    guarantees=(),
    without=Rule(
        "a finished change stays finished before any lock is free",
        patch="syncer.locks.burial:_Remains.amend",
        instead=keeps_the_intent,
    ),
)
def test_what_is_finished_is_not_rolled_back(endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one goes on where the first one was."""
    with (
        lockers(endpoints, index) as (first, second),
        Locks(second._client, owner="third", index=f"{index}-locks", recovery=Recovery.ROLL_BACK) as third,
    ):
        fail_at(monkeypatch, first._fence, "write", KeyboardInterrupt(), turn=2)
        with pytest.raises(KeyboardInterrupt), first.everything() as held:
            set_pair(held, index, 7)
        fail_at(monkeypatch, second._registry.intents, "drop_all_of", RuntimeError())
        with pytest.raises(RuntimeError), second.everything():
            pass
        with third.everything():
            assert values(third._client, index) == (7, 7)


@faces(
    "a holder is delayed until Elasticsearch has forgotten that its documents were rolled back, and gets a 503",
    guarantees=(),
    without=Rule(
        "an owner that may have created a document, and finds its lease expired, deletes it",
        patch="syncer.locks.fence:Fence.take_back",
        instead=DOES_NOTHING,
    ),
)
def test_what_was_made_too_late_is_taken_back(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No version holds it off any more, and no answer has said that it was made."""
    with lockers(endpoints, index, recovery=Recovery.ROLL_BACK) as (first, second), ThreadPoolExecutor() as pool:
        client = first._client
        fail_at(monkeypatch, first._fence, "write", UnavailableError("Part of it was not written"), after=True)
        come, go = held_up(monkeypatch, first, "write")

        def make() -> None:
            with first.everything() as held:
                held.write([Edit(index=index, id="new", source={"value": 7})])

        late = pool.submit(make)
        assert come.wait(DEADLINE_SECONDS)
        with second.everything():
            pass
        # What a restart does at once, this does at the next refresh.
        client.indices.put_settings(index=index, settings={"index.gc_deletes": "1ms"})

        def is_forgotten() -> bool:
            client.indices.refresh(index=index)
            with suppress(ConflictError):
                client.index(index=index, id="new", document={}, version=1, version_type="external")
                return bool(client.delete(index=index, id="new", version=2, version_type="external"))
            return False

        wait_until(is_forgotten, what="the delete is forgotten")
        go.set()
        with pytest.raises(LockLostError):
            late.result()
        assert not client.exists(index=index, id="new")


@faces("a request that gives a lock back, or takes it, is not answered", guarantees=(), without=UNSURE)
@pytest.mark.parametrize("method", ["give_back", "take"])
def test_a_lock_that_could_not_be_given_back_is_free_though_its_owner_lives(
    endpoints: Endpoints, index: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Who is unsure of what it has leaves, so that others free what is there, and comes back as somebody else."""
    with lockers(endpoints, index) as (first, second):
        entries, holder = first._registry.entries, first._lease.id
        take = entries.take
        error = NoConnectionError("it hangs") if method == "give_back" else ConnectionTimeout("it takes long")
        fail_at(monkeypatch, entries, method, error)
        with first.everything():
            locks = [one.lock for one in entries.of(holder)]
        if method == "take":  # the request that was given up arrives at last
            monkeypatch.setattr(entries, "take", take)
            assert take(holder, [(lock, Mode.EXCLUSIVE) for lock in locks]) == {}
        with second.everything(timeout=DEADLINE_SECONDS):
            pass
        with first.everything():
            pass
        assert list(ensure(first._client, f"{index}-locks").entries.of()) == []
