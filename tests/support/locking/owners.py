"""Owners of locks in one process, held up where a test wants it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.locks import Locks
from syncer.sandbox import Endpoints
from tests.support.world import DEADLINE_SECONDS

LEASE = 2.0
"""Longer than a request usually takes; each test in which an owner is taken for dead waits for so long."""


@contextmanager
def lockers(endpoints: Endpoints, index: str, *, other_lease: float = 15) -> Iterator[tuple[Locks, Locks]]:
    """Two owners; the second one rolls back what the first one leaves."""
    with Elasticsearch(endpoints.elasticsearch_url, request_timeout=60) as client:
        where = f"{index}-locks"
        with (
            Locks(client, owner="first", index=where, lease_seconds=LEASE) as first,
            Locks(client, owner="second", index=where, lease_seconds=other_lease) as second,
        ):
            yield first, second


def stall(locks: Locks) -> None:
    """Renew no more, as a process that stands still."""
    locks._lease._ended.set()
    locks._lease._thread.join()


def held_up(monkeypatch: pytest.MonkeyPatch, locks: Locks, method: str) -> tuple[threading.Event, threading.Event]:
    """Hold an owner up in a method of its fence: has it come there, and may it go on?"""
    come, go = threading.Event(), threading.Event()
    call = getattr(locks._fence, method)

    def wait_and_call(*arguments: Any, **named: Any) -> Any:
        if not go.is_set():
            stall(locks)
            come.set()
            assert go.wait(DEADLINE_SECONDS)
        return call(*arguments, **named)

    monkeypatch.setattr(locks._fence, method, wait_and_call)
    return come, go


def fail_at(
    monkeypatch: pytest.MonkeyPatch,
    part: object,
    method: str,
    error: BaseException,
    *,
    turn: int = 1,
    after: bool = False,
    ever: bool = False,
) -> None:
    """Have a method fail at the how many-th call, and ``ever`` after; before it does anything, or after all is done."""
    call = getattr(part, method)
    turns = itertools.count(1)

    def fail_or_call(*arguments: Any, **named: Any) -> Any:
        number = next(turns)
        is_due = number == turn or (ever and number > turn)
        if is_due and not after:
            raise error
        result = call(*arguments, **named)
        if is_due:
            raise error
        return result

    monkeypatch.setattr(part, method, fail_or_call)
