"""Rules of what each role may do, taken out."""

from __future__ import annotations

from collections.abc import Mapping

from syncer.apply.grants import Duty

_Privileges = Mapping[Duty, Mapping[str, str]]


def lets_workers_write_definitions(original: _Privileges) -> _Privileges:
    """Workers may write every column of a definition."""
    return {**original, Duty.WORKER: {**original[Duty.WORKER], "document": "SELECT, UPDATE"}}


def lets_daemons_write_conditions(original: _Privileges) -> _Privileges:
    """Relays and workers may make any job."""
    may = "SELECT, INSERT, UPDATE, DELETE"
    return {duty: {**original[duty], "job": may} if "job" in original[duty] else original[duty] for duty in original}
