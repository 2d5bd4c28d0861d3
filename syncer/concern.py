"""Concern: what of an overview needs a person, each in one sentence, with what to do about it.

`syncer status`, `syncer top` and the status page say the same, since they say it from here.
Guarantee: there is no concern if, and only if, the overview is well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from syncer import halting
from syncer.model import Role
from syncer.overview import DocumentOverview, Overview, Rates
from syncer.wording import amount, duration

_SOON_SECONDS = 1
_BEHIND_SECONDS = 10


class Mood(StrEnum):
    """How urgent it is."""

    WELL = "well"
    """Nobody has to do anything."""
    BUSY = "busy"
    """Nobody has to do anything but wait."""
    BAD = "bad"
    """Somebody has to do something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """One thing that is not well.

    Args:
        says: What; one sentence.
        do: What to do about it; may have several lines.
        about: The document that it is about; None if it is about all.
        is_passing: Whether it goes away by itself.
    """

    says: str
    do: str
    about: str | None = None
    is_passing: bool = False


def concerns(seen: Overview) -> tuple[Concern, ...]:
    """All that is not well, what matters most first."""
    found = [*_of_flow(seen), *(one for document in seen.documents for one in _of_document(document, seen))]
    return (*found, *_of_jobs(seen), *_of_records(seen))


def headline(seen: Overview) -> str:
    """In one sentence whether all is well."""
    found = concerns(seen)
    if found:
        return found[0].says if len(found) == 1 else f"{len(found)} things are not well."
    if not seen.documents:
        return "All is well, but no document is in force. Run: syncer apply"
    going = [said for said in (_on_the_way(seen), _at_work(seen)) if said]
    return (
        f"{'Behind, and at work' if mood(seen) is Mood.BUSY else 'All is well'}. {'; '.join(going) or 'Nothing waits'}."
    )


def _on_the_way(seen: Overview) -> str:
    waiting = seen.outbox_waiting + seen.topic_waiting
    oldest = f", the oldest for {duration(seen.lag_seconds)}" if seen.lag_seconds >= _SOON_SECONDS else ""
    return f"{amount(waiting, 'change')} on the way{oldest}" if waiting else ""


def _at_work(seen: Overview) -> str:
    left = [one.eta_seconds for one in seen.jobs if not one.is_paused]
    known = [one for one in left if one is not None]
    until = f", for {duration(max(known))} yet" if left and len(known) == len(left) else ""
    return f"{amount(len(left), 'job')} at work{until}" if left else ""


def mood(seen: Overview) -> Mood:
    """How urgent it is."""
    found = concerns(seen)
    if any(not one.is_passing for one in found):
        return Mood.BAD
    return Mood.BUSY if found or seen.lag_seconds >= _BEHIND_SECONDS else Mood.WELL


def as_json(seen: Overview, rates: Rates | None) -> dict[str, Any]:
    """All of it as plain data: what `syncer status --json` prints, and /api/status answers."""
    return {
        **seen.as_json(),
        "rates": rates and asdict(rates),
        "headline": headline(seen),
        "mood": mood(seen),
        "concerns": [asdict(one) for one in concerns(seen)],
    }


def _of_flow(seen: Overview) -> Iterator[Concern]:
    if seen.leader is None and not seen.workers:
        yield Concern(says="No daemon is at work.", do="Start one: syncer run. Nothing is lost meanwhile.")
    elif seen.leader is None:
        yield Concern(
            says="No relay leads: changes stay in the outbox.",
            do="Start a daemon with a relay: syncer run, or syncer run --only relay",
        )
    elif not seen.workers:
        yield Concern(
            says="No worker is at work: changes stay in the topic.",
            do="Start a daemon with workers: syncer run, or syncer run --only workers",
        )


def _of_document(one: DocumentOverview, seen: Overview) -> Iterator[Concern]:
    name = one.name
    if one.halted is not None:
        what, _, hint = one.halted.partition("\n")
        yield Concern(says=f"{name} is halted: {what}.", do=hint or "Mend it, then run: syncer apply", about=name)
    elif not one.is_filled:
        yield _unfilled(one, seen)
    for index_name, said in one.troubles.items():
        what, _, hint = said.partition("\n")
        yield Concern(
            says=f"{index_name} ({one.roles[index_name]}) is halted: {what}.",
            do=_do_without(one, index_name, hint),
            about=name,
        )
    for index_name, said in one.unwell.items():
        what, _, hint = said.partition("\n")
        yield Concern(
            says=f"{what}. What changes waits in a job.",
            do=hint or f"Mend {index_name}: it goes on by itself.",
            about=name,
        )
    for index_name, number in one.targets.items():
        if number is None and index_name not in one.unwell:
            yield Concern(
                says=f"The index {index_name} is gone or closed, or a shard of it is away.",
                do=_mend(one, index_name),
                about=name,
            )
    if one.dead_letters:
        yield Concern(
            says=f"{amount(one.dead_letters, 'document')} of {name} could not be written.",
            do=f"Why, and what to do: syncer dead-letters list {name}",
            about=name,
        )


def _unfilled(one: DocumentOverview, seen: Overview) -> Concern:
    serving = [name for name, role in one.roles.items() if role is Role.SERVING]
    filling = [job for job in seen.jobs if job.index_name in serving and job.fills and not job.is_paused]
    if filling:
        left = filling[0].eta_seconds
        until = "" if left is None else f", done in {duration(left)}"
        return Concern(
            says=f"{one.name} is being filled{until}.",
            do="Wait: until then some of its documents may be missing or stale.",
            about=one.name,
            is_passing=True,
        )
    return Concern(
        says=f"{one.name} is not filled: documents may be missing or stale.",
        do=f"Run: syncer apply, or syncer backfill {one.name}",
        about=one.name,
    )


def _mend(one: DocumentOverview, index_name: str) -> str:
    if one.roles[index_name] is Role.SERVING:
        return f"Open it again. If it was deleted: syncer backfill {one.name} --rebuild"
    if one.roles[index_name] is Role.BUILDING:
        return f"Open it again, or give it up: syncer backfill {one.name} --abandon"
    return f"Open it again, or do without it: syncer backfill {one.name} --drop-old"


def _do_without(one: DocumentOverview, index_name: str, hint: str) -> str:
    """What to do about an index that searches do not find, and that is halted; none on standby is filled again."""
    if one.roles[index_name] is Role.BUILDING:
        return f"{hint}\nTo give it up: syncer backfill {one.name} --abandon".strip()
    return halting.no_way_back(one.name)


def _of_jobs(seen: Overview) -> Iterator[Concern]:
    for one in seen.jobs:
        if one.is_paused and one.kind.is_owed:
            yield Concern(
                says=f"Job {one.id} is paused, and documents of {one.document} are stale until it is done.",
                do=f"Run: syncer jobs resume {one.id}",
                about=one.document,
            )


def _of_records(seen: Overview) -> Iterator[Concern]:
    if seen.unreadable_records:
        yield Concern(
            says=f"{amount(seen.unreadable_records, 'record')} of the topic cannot be read as changes.",
            do="Does somebody else write to it? To see them, and decide: syncer dead-letters list",
        )
