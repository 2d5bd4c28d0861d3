"""Run ``syncer`` with a part that breaks a rule: ``python -m tests.sabotages NAME run``.

A soak of such daemons fails: ``pytest tests/soak --soak-sabotage NAME``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from unittest.mock import patch

from syncer.cli import app
from syncer.worker.source import OutboxSource, TopicSource
from tests.sabotages import parts
from tests.sabotages.parts import Spoiled, spoiled


def _sources(kind: type[Spoiled]) -> dict[str, object]:
    return {
        "syncer.daemon.OutboxSource": spoiled(kind, OutboxSource),
        "syncer.daemon.TopicSource": spoiled(kind, TopicSource),
    }


SABOTAGES: Mapping[str, Mapping[str, object]] = {
    "saves-first": _sources(parts.SavesFirst),
    "cursor-is-an-id": _sources(parts.CursorIsAnId),
    "new-rows-only": _sources(parts.NewRowsOnly),
    "skips-truncates": _sources(parts.SkipsTruncates),
    "saves-unacknowledged": {"syncer.recovery.backlog.OutboxReader": parts.SavesUnacknowledged},
    "old-term": {"syncer.relay.loop.ChangeProducer": parts.OldTerm},
    "ignores-versions": {"syncer.daemon.Index": parts.IgnoresVersions},
    "hides-creations": {"syncer.daemon.Index": parts.HidesCreations},
    "swallows-failures": {"syncer.daemon.Index": parts.SwallowsFailures},
}
"""By name, what takes the place of which part where the daemon puts its components together."""

if __name__ == "__main__":
    with ExitStack() as replaced:
        for target, replacement in SABOTAGES[sys.argv.pop(1)].items():
            replaced.enter_context(patch(target, replacement))
        app.main()
