"""The three locks of the guide: what each keeps out, and changes under them. The examples of docs/locks.md."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import LockError, LockTimeoutError
from syncer.locks import Edit, HeldLocks, Locks, edits
from syncer.sandbox import Endpoints
from tests.support.locking import FILES_INDEX, page_example

Take = Callable[[Locks], AbstractContextManager[HeldLocks]]
SHORT = 0.2


@pytest.fixture
def index(client: Elasticsearch) -> Iterator[str]:
    """The guide's index of files, deleted afterwards, as is that of its locks."""
    name = f"files-{random.randrange(10**9)}"
    client.indices.create(index=name, **FILES_INDEX)
    yield name
    client.indices.delete(index=[name, f"{name}-locks"], ignore_unavailable=True)


@pytest.fixture
def owner(client: Elasticsearch, index: str) -> Callable[[str], Locks]:
    """Makes owners of locks."""
    return lambda name: Locks(client, owner=name, index=f"{index}-locks", lease_seconds=30)


def everything(locks: Locks) -> AbstractContextManager[HeldLocks]:
    """The global lock."""
    return locks.everything(timeout=SHORT)


def documents(*ids: str) -> Take:
    """Locks on documents."""
    return lambda locks: locks.documents("files", ids, timeout=SHORT)


def tree(*paths: str, name: str = "files") -> Take:
    """Locks on paths."""
    return lambda locks: locks.tree(*paths, name=name, timeout=SHORT)


def add_files(client: Elasticsearch, index: str, files: dict[str, tuple[str, str]]) -> None:
    """Write files, each with its directory and its name."""
    new_files = [Edit(index=index, id=id_, source={"path": path, "name": name}) for id_, (path, name) in files.items()]
    assert edits.write(client, new_files, term=1) is None


README = "/clinton/projects/elasticsearch/README.txt"


@pytest.mark.parametrize(
    ("held", "wanted", "conflict"),
    [
        (everything, everything, True),
        (documents("1", "2", "3"), documents("0", "3", "4"), True),
        (tree(README), tree("/clinton"), True),
        (tree("/clinton"), tree(README), True),
        (tree("/clinton"), tree("/"), True),
        (tree("/a/b", "/c"), tree("/c/d"), True),
        (documents("1", "2"), documents("3"), False),
        (tree(README), tree("/clintons"), False),
        (tree("/a"), tree("/a", name="other"), False),
        (tree("/" + "x" * 3000), tree("/" + "x" * 3001), False),
        (tree("/caf\u00e9"), tree("/cafe\u0301"), False),
        (tree("/a\0b/\udcff:~%2F\n"), tree("/a\0b/\udcfe:~%2F\n"), False),
    ],
)
def test_what_overlaps_is_held_by_one(
    owner: Callable[[str], Locks], held: Take, wanted: Take, *, conflict: bool
) -> None:
    """An owner that waits in vain is told who holds it, and keeps nothing; later it is granted, in a greater term."""
    first, second = owner("123"), owner("234")
    with held(first) as earlier_lock:
        if conflict:
            with pytest.raises(LockTimeoutError, match="held by 123"), wanted(second):
                pass
        else:
            with wanted(second):
                pass
    with wanted(second) as later_lock:
        assert later_lock.term > earlier_lock.term
    with held(first):
        pass


@pytest.mark.parametrize(
    ("take", "message"),
    [
        (lambda locks: locks.tree("a/b"), "not an absolute path"),
        (lambda locks: locks.tree("/a/../b"), "not an absolute path"),
        (lambda locks: locks.everything(""), "without a name"),
        (lambda locks: locks.documents("files", map(str, range(1001))), "too many"),
        (lambda locks: locks.documents("files", "12"), "is a single id"),
    ],
)
def test_what_cannot_be_locked_is_refused(owner: Callable[[str], Locks], take: Take, message: str) -> None:
    """Before anything is taken."""
    with pytest.raises(LockError, match=message), take(owner("123")):
        pass


def test_locks_are_requested_at_once_and_used_while_they_are_held(index: str, owner: Callable[[str], Locks]) -> None:
    """Two owners that request a lock while they hold another could wait for each other forever."""
    locks = owner("123")
    with locks.documents("files", ["2"]) as lock:
        with pytest.raises(LockError, match="holds locks already"), locks.documents("files", ["1"]):
            pass
        with documents("1")(owner("234")):
            pass
    with pytest.raises(LockError, match="were released"):
        lock.write([Edit(index=index, id="1", source={"name": "a", "path": "/"})])


def test_a_change_that_is_refused_changes_nothing(
    client: Elasticsearch, index: str, owner: Callable[[str], Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One document of several does not fit the mapping: the others are as they were, in however many pages."""
    monkeypatch.setattr(edits, "PAGE_EDITS_MAX", 1)
    add_files(client, index, {"1": ("/", "a")})
    with owner("123").everything() as lock:
        good = [Edit(index=index, id=id_, source={"name": "b", "path": "/"}) for id_ in "12"]
        with pytest.raises(LockError, match=f"{index}/3 is refused"):
            lock.write([*good, Edit(index=index, id="3", source={"name": {"no": "text"}})])
        assert client.get(index=index, id="1")["_source"]["name"] == "a"
        assert not client.exists(index=index, id="2")
        assert lock.write([Edit(index=index, id="1", source=None)]) == 1
    assert not client.exists(index=index, id="1")


def test_renames_of_files_and_directories_at_once(
    endpoints: Endpoints, client: Elasticsearch, index: str, owner: Callable[[str], Locks]
) -> None:
    """The guide's question: neither the file's rename nor the directory's is lost, whichever comes first."""
    add_files(client, index, {"1": ("/x", "a.txt"), "2": ("/x", "b.txt")})
    example = page_example(endpoints.elasticsearch_url, index)
    assert client.get(index=index, id="1")["_source"] == {"path": "/x", "name": "README.asciidoc"}
    paths = {str(number): f"/clinton/projects/{number % 3}" for number in range(10, 18)}
    add_files(client, index, {id_: (path, f"{id_}.txt") for id_, path in paths.items()})

    def move() -> None:
        for source, destination in (("/clinton", "/hillary"), ("/hillary", "/bill"), ("/bill", "/clinton")):
            assert example["rename_directory"](owner("mover"), client, index, source, destination) == len(paths)

    def rename(ids: range) -> None:
        for id_ in ids:
            example["rename_file"](owner("renamer"), client, index, str(id_), f"{id_}.asciidoc")

    with ThreadPoolExecutor() as pool:
        for submitted in [pool.submit(move), pool.submit(rename, range(10, 14)), pool.submit(rename, range(14, 18))]:
            submitted.result()
    sources = {id_: client.get(index=index, id=id_)["_source"] for id_ in paths}
    assert sources == {id_: {"name": f"{id_}.asciidoc", "path": path} for id_, path in paths.items()}
