"""The three locks of the guide: what each keeps out, how it is waited for and given back."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
from elasticsearch import ConnectionTimeout, Elasticsearch

from syncer.base.errors import LockError, LockLostError, LockTimeoutError
from syncer.locks import Edit, HeldLocks, Locks
from syncer.locks.entries import Entry
from syncer.locks.intents import Intent
from syncer.locks.names import Mode
from syncer.locks.registry import ensure, find
from syncer.sandbox import Endpoints
from tests.support.locking.files import INDEX_BODY, rename_directory, rename_file
from tests.support.locking.owners import fail_at
from tests.support.world import DEADLINE_SECONDS, wait_until

Take = Callable[[Locks], AbstractContextManager[HeldLocks]]
SHORT = 0.2


@pytest.fixture
def client(endpoints: Endpoints) -> Iterator[Elasticsearch]:
    """A plain client."""
    with Elasticsearch(endpoints.elasticsearch_url, request_timeout=60) as made:
        yield made


@pytest.fixture
def index(client: Elasticsearch) -> Iterator[str]:
    """The guide's index of files, and one of locks; both gone afterwards."""
    name = f"files-{random.randrange(10**9)}"
    client.indices.create(index=name, **INDEX_BODY)
    yield name
    client.indices.delete(index=[name, f"{name}-locks", f"{name}-locks-intents"], ignore_unavailable=True)


@pytest.fixture
def owner(client: Elasticsearch, index: str) -> Iterator[Callable[[str], Locks]]:
    """Makes owners of locks."""
    made: list[Locks] = []

    def make(name: str) -> Locks:
        made.append(Locks(client, owner=name, index=f"{index}-locks", lease_seconds=30))
        return made[-1]

    yield make
    for one in made:
        one.close()


def entries(client: Elasticsearch, index: str) -> set[tuple[str, str]]:
    """All that is held: the lock and how."""
    return {(one.lock, one.mode) for one in ensure(client, f"{index}-locks").entries.of()}


def everything(locks: Locks) -> AbstractContextManager[HeldLocks]:
    """The global lock."""
    return locks.everything(timeout=SHORT)


def documents(*ids: str) -> Take:
    """Locks on documents."""
    return lambda locks: locks.documents("files", ids, timeout=SHORT)


def tree(*paths: str) -> Take:
    """Locks on paths."""
    return lambda locks: locks.tree(*paths, timeout=SHORT)


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (everything, everything),
        (documents("1", "2", "3"), documents("1")),
        (documents("1", "2", "3"), documents("0", "3", "4")),
        (tree("/clinton/projects/elasticsearch/README.txt"), tree("/clinton")),
        (tree("/clinton"), tree("/clinton/projects/elasticsearch/README.txt")),
        (tree("/clinton"), tree("/clinton/")),
        (tree("/clinton"), tree("/")),
        (tree("/a/b", "/c"), tree("/c/d")),
        (tree("/"), tree("/a")),
    ],
)
def test_one_keeps_the_other_out(
    client: Elasticsearch, index: str, owner: Callable[[str], Locks], held: Take, wanted: Take
) -> None:
    """Who waits in vain is told who holds it, and leaves nothing behind; later it is his, in a greater term."""
    first, second = owner("123"), owner("234")
    with held(first) as before:
        taken = entries(client, index)
        with pytest.raises(LockTimeoutError, match="held by 123"), wanted(second):
            pass
        assert entries(client, index) == taken
    with wanted(second) as after:
        assert after.term > before.term
    assert entries(client, index) == set()


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (everything, tree("/")),
        (documents("1", "2"), documents("3")),
        (tree("/clinton/projects/README.txt"), tree("/clinton/projects/NOTES.txt")),
        (tree("/clinton/projects/README.txt"), tree("/clintons")),
        (tree("/a b"), tree("/a%20b")),
        (tree("/a"), lambda locks: locks.tree("/a", name="other", timeout=SHORT)),
        (tree("/" + "x" * 3000), tree("/" + "x" * 3001)),
        (tree("/a" * 100 + "/b"), tree("/a" * 100 + "/c")),
        (tree("/caf\u00e9"), tree("/cafe\u0301")),
        (tree("/a\0b/\udcff:~%2F\n"), tree("/a\0b/\udcfe:~%2F\n")),
    ],
)
def test_one_does_not_keep_the_other_out(owner: Callable[[str], Locks], held: Take, wanted: Take) -> None:
    """What has nothing to do with each other is locked side by side, whatever characters are in it."""
    with held(owner("123")), wanted(owner("234")):
        pass


def test_an_owner_requests_all_locks_at_once(owner: Callable[[str], Locks]) -> None:
    """Two owners that request one lock under another could wait for each other forever."""
    locks = owner("123")
    with locks.documents("files", ["2"]):
        with pytest.raises(LockError, match="holds locks already"), locks.documents("files", ["1"]):
            pass
        with documents("1")(owner("234")):
            pass
    with locks.documents("files", ["1"]):
        pass


def test_nothing_is_written_after_the_end_of_the_block(index: str, owner: Callable[[str], Locks]) -> None:
    """The lock may be somebody else's by then, though its owner still has others."""
    with owner("123").everything() as held:
        pass
    with pytest.raises(LockError, match="were given back"):
        held.write([Edit(index=index, id="1", source={"name": "a", "path": "/"})])


def test_an_index_that_cannot_hold_locks_is_refused(client: Elasticsearch, index: str) -> None:
    """One that Elasticsearch has made by itself, one with two shards, an alias: the order of terms would be lost."""
    name = f"{index}-locks"
    settings = {"number_of_shards": 2, "number_of_replicas": 0}
    client.indices.create(index=f"{name}-intents", settings=settings)
    for body in ({"settings": settings}, {"mappings": {"dynamic": True}}):
        client.indices.create(index=name, **body)
        with pytest.raises(LockError, match="made for locks"):
            Locks(client, owner="123", index=name)
        client.indices.delete(index=name)
    client.indices.put_alias(index=index, name=name)
    with pytest.raises(LockError, match="made for locks"):
        Locks(client, owner="123", index=name)
    with pytest.raises(LockError, match="made for locks"):
        find(client, index)  # though it has no intents beside it


def test_a_shared_lock_is_an_entry_for_each(client: Elasticsearch, index: str, owner: Callable[[str], Locks]) -> None:
    """However many share a directory, each gives back what is his own, and nothing of it remains."""
    first, second, third = owner("1"), owner("2"), owner("3")
    with tree("/a/1")(first), tree("/a/2")(second):
        with pytest.raises(LockTimeoutError), tree("/a")(third):
            pass
        with tree("/a/3")(third):  # who has waited in vain keeps nobody out, himself least of all
            pass
    with tree("/a")(third):
        pass
    assert entries(client, index) == set()


def test_who_waits_to_be_alone_is_not_overtaken_for_ever(owner: Callable[[str], Locks]) -> None:
    """While somebody waits for a directory, nobody new shares it, or those who do would never all be gone."""
    sharing, alone, late = owner("sharing"), owner("alone"), owner("late")
    with ThreadPoolExecutor() as pool:
        is_alone = threading.Event()

        def take() -> None:
            with alone.tree("/a", timeout=DEADLINE_SECONDS):
                is_alone.set()

        def is_kept_out() -> bool:
            try:
                with late.tree("/a/2", timeout=0):
                    return False
            except LockTimeoutError:
                return True

        with sharing.tree("/a/1"):
            waiting = pool.submit(take)
            wait_until(is_kept_out, what="the one who waits has come")
            assert not is_alone.is_set()
        waiting.result()


def test_sets_that_overlap_are_taken_without_a_circle(owner: Callable[[str], Locks]) -> None:
    """Many owners, each of whom wants a handful of ten documents, again and again: all get through."""
    owners = [owner(str(number)) for number in range(4)]

    def work(locks: Locks) -> None:
        for _ in range(10):
            with locks.documents("files", map(str, random.sample(range(10), 4)), timeout=DEADLINE_SECONDS):
                pass

    with ThreadPoolExecutor(len(owners)) as pool:
        for done in [pool.submit(work, one) for one in owners]:
            done.result()


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (lambda locks: locks.tree("a/b"), "not an absolute path"),
        (lambda locks: locks.tree("/a/../b"), "not an absolute path"),
        (lambda locks: locks.everything(""), "without a name"),
        (lambda locks: locks.documents("files", map(str, range(20_000))), "too many"),
        (lambda locks: locks.documents("files", "12"), "is one id, and not some"),
    ],
)
def test_what_cannot_be_locked_is_refused(owner: Callable[[str], Locks], take: Take, said: str) -> None:
    """With words, before anything is taken."""
    with pytest.raises(LockError, match=said), take(owner("123")):
        pass


def test_a_change_that_is_refused_changes_nothing(
    client: Elasticsearch, index: str, owner: Callable[[str], Locks]
) -> None:
    """One document of many does not fit the mapping: all the others are as they were."""
    client.index(index=index, id="1", document={"name": "a", "path": "/"}, version=1, version_type="external")
    with owner("123").everything() as held:
        with pytest.raises(LockError, match=f"{index}/3 is refused"):
            held.write(
                [
                    Edit(index=index, id="1", source={"name": "b", "path": "/"}),
                    Edit(index=index, id="2", source={"name": "c", "path": "/"}),
                    Edit(index=index, id="3", source={"name": {"no": "text"}}),
                ]
            )
        assert client.get(index=index, id="1")["_source"]["name"] == "a"
        assert not client.exists(index=index, id="2")
        assert held.write([Edit(index=index, id="1", source=None)]) == 1
    assert not client.exists(index=index, id="1")


def test_an_index_that_forgets_deletes_is_refused(
    client: Elasticsearch, index: str, owner: Callable[[str], Locks]
) -> None:
    """A late write could bring back what was deleted; the hint is what fixes it."""
    client.indices.put_settings(index=index, settings={"index.gc_deletes": "60s"})
    with owner("123").everything() as held:
        with pytest.raises(LockError, match="forgets") as refused:
            held.write([Edit(index=index, id="1", source=None)])
        assert f"PUT {index}/_settings" in refused.value.hint


def test_an_index_that_is_not_there_is_refused(index: str, owner: Callable[[str], Locks]) -> None:
    """Elasticsearch would make one that forgets deletes within a minute."""
    with owner("123").everything() as held, pytest.raises(LockError, match="no such index"):
        held.write([Edit(index=f"{index}-other", id="1", source={})])


def test_what_cannot_be_read_is_not_changed(client: Elasticsearch, index: str, owner: Callable[[str], Locks]) -> None:
    """An index without _source: nobody could put back what was there."""
    client.indices.delete(index=index)
    client.indices.create(index=index, settings={"index.gc_deletes": "1h"}, mappings={"_source": {"enabled": False}})
    client.index(index=index, id="1", document={"name": "a"})
    with owner("123").everything() as held, pytest.raises(LockError, match="does not keep what its documents"):
        held.write([Edit(index=index, id="1", source={"name": "b"})])
    assert client.get(index=index, id="1")["_version"] == 1


def test_what_is_deleted_makes_no_page_too_large(
    client: Elasticsearch, index: str, owner: Callable[[str], Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elasticsearch takes no request beyond its bounds, and the documents as they are belong to what is put down."""
    monkeypatch.setattr("syncer.locks.held._PAGE_BYTES_MAX", 1000)
    for id_ in "123":
        client.index(index=index, id=id_, document={"name": "a" * 600}, version=1, version_type="external")
    locks, sizes = owner("123"), []
    put = locks._registry.intents.put

    def put_and_note(intent: Intent, before: Sequence[Edit], *, holder: str) -> None:
        sizes.append(len(before))
        put(intent, before, holder=holder)

    monkeypatch.setattr(locks._registry.intents, "put", put_and_note)
    with locks.everything() as held:
        assert held.write([Edit(index=index, id=id_, source=None) for id_ in "123"]) == 3
    assert sizes == [1, 1, 1]


def test_who_waits_for_one_lock_leaves_those_behind_it_alone(
    index: str, owner: Callable[[str], Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long list is not taken and given back again and again for as long as its first one is somebody else's."""
    first, second = owner("123"), owner("234")
    take, sizes = second._registry.entries.take, []

    def take_and_note(holder: str, wanted: Sequence[tuple[str, Mode]]) -> dict[str, list[Entry]]:
        sizes.append(len(wanted))
        return take(holder, wanted)

    monkeypatch.setattr(second._registry.entries, "take", take_and_note)

    def take_all() -> None:
        with second.documents(index, map(str, range(10))):
            pass

    with ThreadPoolExecutor() as pool:
        with first.documents(index, ["3"]):
            waiting = pool.submit(take_all)
            wait_until(lambda: len(sizes) > 3, what="it has asked a few times")
        waiting.result()
    assert sizes[0] == 10
    assert set(sizes[1:-1]) == {1}
    assert sizes[-1] == 6


def test_many_locks_are_taken_in_parts(
    index: str, owner: Callable[[str], Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for all of them could take longer than a lease: it would be given up, and sent again."""
    monkeypatch.setattr("syncer.locks.keeper._ASKED_MAX", 4)
    first, second = owner("123"), owner("234")
    take, asked = second._registry.entries.take, []

    def take_and_note(holder: str, wanted: Sequence[tuple[str, Mode]]) -> dict[str, list[Entry]]:
        asked.append([lock.rpartition(":")[2] for lock, _ in wanted])
        return take(holder, wanted)

    monkeypatch.setattr(second._registry.entries, "take", take_and_note)
    with (
        second.documents(index, map(str, range(10))),
        pytest.raises(LockTimeoutError),
        first.documents(index, ["9"], timeout=SHORT),
    ):
        pass
    assert asked == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9"]]


def test_locks_go_on_after_their_index_was_deleted(
    client: Elasticsearch, index: str, owner: Callable[[str], Locks]
) -> None:
    """Whoever comes back makes it anew, and not Elasticsearch by itself, which knows nothing of locks."""
    locks = owner("123")
    locks.close()
    client.indices.delete(index=[f"{index}-locks", f"{index}-locks-intents"])
    with locks.everything(), pytest.raises(LockTimeoutError), everything(owner("234")):
        pass


def test_nothing_remains_of_who_left_without_knowing_what_it_wrote(
    client: Elasticsearch, index: str, owner: Callable[[str], Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a renewal was lost; an intent was put down, and that was not said."""
    locks = owner("123")
    with locks.everything() as held:
        fail_at(monkeypatch, locks._registry.intents, "put", KeyboardInterrupt(), after=True)
        with pytest.raises(KeyboardInterrupt):
            held.write([Edit(index=index, id="1", source={"name": "a"})])
    fail_at(monkeypatch, locks._lease._holders, "amend", ConnectionTimeout("it takes long"), after=True)
    with pytest.raises(ConnectionTimeout):
        locks._lease.amend()
    locks.close()
    client.indices.refresh(index=f"{index}-locks*", expand_wildcards="all")
    assert client.count(index=f"{index}-locks,{index}-locks-intents")["count"] == 0


def test_who_gives_everything_back_in_between_is_told(owner: Callable[[str], Locks]) -> None:
    """At the end of the block, which was to hold a lock for so long."""
    locks = owner("123")
    with pytest.raises(LockLostError), locks.everything():
        locks.close()


def test_who_lost_his_lock_is_told_at_the_end(owner: Callable[[str], Locks]) -> None:
    """An operator breaks a lock: whoever held it cannot think that he was alone."""
    first, second = owner("123"), owner("234")
    with pytest.raises(LockLostError), first.everything():
        assert second.bury(first._lease.id)


@pytest.mark.parametrize(
    ("rename", "names", "error"),
    [
        (rename_directory, ("/a", "/b"), FileExistsError),
        (rename_directory, ("/a", "/c/file"), FileExistsError),
        (rename_directory, ("/a", "/a/b"), ValueError),
        (rename_directory, ("/", "/b"), ValueError),
        (rename_file, ("1", "other"), FileExistsError),
        (rename_file, ("1", "sub"), FileExistsError),
    ],
)
def test_a_rename_onto_what_is_there_is_refused(
    *,
    client: Elasticsearch,
    index: str,
    owner: Callable[[str], Locks],
    rename: Callable[..., object],
    names: tuple[str, ...],
    error: type[Exception],
) -> None:
    """Two directories cannot become one by accident, nor two files; nothing has changed."""
    paths = {"1": ("/a", "file"), "2": ("/a", "other"), "3": ("/a/sub", "x"), "4": ("/b", "file"), "5": ("/c", "file")}
    for id_, (path, name) in paths.items():
        client.index(index=index, id=id_, document={"path": path, "name": name}, version=1, version_type="external")
    with pytest.raises(error):
        rename(owner("123"), client, index, *names)
    assert {id_: client.get(index=index, id=id_)["_version"] for id_ in paths} == dict.fromkeys(paths, 1)


def test_renames_of_files_and_directories_at_once(
    client: Elasticsearch, index: str, owner: Callable[[str], Locks]
) -> None:
    """The guide's question: neither the file's rename nor the directory's is lost, whoever comes first."""
    for number in range(30):
        client.index(
            index=index,
            id=str(number),
            document={"name": f"{number}.txt", "path": f"/clinton/projects/{number % 3}"},
            version=1,
            version_type="external",
        )
    moves = [("/clinton", "/hillary"), ("/hillary", "/bill"), ("/bill", "/clinton")]

    def move() -> None:
        locks = owner("mover")
        for source, destination in moves:
            assert rename_directory(locks, client, index, source, destination) == 30

    def rename(name: str, ids: range) -> None:
        locks = owner(name)
        for id_ in ids:
            rename_file(locks, client, index, str(id_), f"{id_}.asciidoc")

    with ThreadPoolExecutor() as pool:
        done = [pool.submit(move), pool.submit(rename, "a", range(15)), pool.submit(rename, "b", range(15, 30))]
        for one in done:
            one.result()
    client.indices.refresh(index=index)
    found = {hit["_id"]: hit["_source"] for hit in client.search(index=index, size=100)["hits"]["hits"]}
    assert found == {
        str(number): {"name": f"{number}.asciidoc", "path": f"/clinton/projects/{number % 3}"} for number in range(30)
    }
