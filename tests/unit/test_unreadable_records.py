"""Records that a worker cannot read are told from changes, and from the empty records that fill a gap."""

from __future__ import annotations

from syncer.kafka.consumer import Received
from syncer.worker.group import _sorted_out

CHANGE = b'{"id":1,"changed_at":1,"relation":"public.posts","operation":"T","old":null,"new":null}'
NEWER = CHANGE.replace(b'"T"', b'"M"')


def received(*values: bytes, partition: int = 0) -> Received:
    """These values, as consecutive records of one partition, the first at offset 7."""
    places = tuple((partition, 7 + number) for number in range(len(values)))
    return Received(values=values, places=places, next_offsets={partition: 7 + len(values)})


def test_changes_beside_an_unreadable_record_are_kept() -> None:
    """The loss has the place of the first unreadable record, and the reason."""
    changes, [lost] = _sorted_out(received(CHANGE, b"garbage", CHANGE, b"more"))
    assert [one.relation for one in changes] == ["public.posts", "public.posts"]
    assert (lost.partition, lost.position, lost.next_offset) == (0, 8, 9)
    assert "not a change" in lost.cause
    assert "newer version" not in lost.cause


def test_a_newer_version_is_recognised() -> None:
    """A record that begins as ours do, and means something else, is said to be of a newer version."""
    _, [lost] = _sorted_out(received(NEWER))
    assert "newer version of syncer" in lost.cause


def test_empty_records_are_no_loss() -> None:
    """They fill the offsets of lost records."""
    changes, losses = _sorted_out(received(b"", CHANGE, b""))
    assert (len(changes), losses) == (1, [])
