"""Run ``syncer`` with a part that breaks a rule: ``python -m tests.sabotages NAME run``.

A soak of such daemons fails: ``pytest tests/soak --soak-sabotage NAME``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from syncer.cli import app
from syncer.elasticsearch.bulk import Index
from syncer.worker.source import OutboxSource, TopicSource
from tests.sabotages import parts
from tests.sabotages.parts import Counting

SOURCES: dict[str, type[Counting]] = {
    "saves-first": parts.SavesFirst,
    "cursor-is-an-id": parts.CursorIsAnId,
    "new-rows-only": parts.NewRowsOnly,
    "skips-truncates": parts.SkipsTruncates,
}
RELAYS: dict[str, tuple[str, type[object]]] = {
    "saves-unacknowledged": ("OutboxReader", parts.SavesUnacknowledged),
    "old-term": ("ChangeProducer", parts.OldTerm),
}
INDICES: dict[str, type[Index]] = {
    "ignores-versions": parts.IgnoresVersions,
    "hides-creations": parts.HidesCreations,
    "swallows-failures": parts.SwallowsFailures,
}


def main() -> None:
    """Replace the part where the daemon puts its components together, and run the command."""
    name = sys.argv.pop(1)
    if kind := SOURCES.get(name):
        outbox, topic = _spoiled(kind, OutboxSource), _spoiled(kind, TopicSource)
        with patch("syncer.daemon.OutboxSource", outbox), patch("syncer.daemon.TopicSource", topic):
            app.main()
    elif relay := RELAYS.get(name):
        with patch(f"syncer.relay.loop.{relay[0]}", relay[1]):
            app.main()
    else:
        with patch("syncer.daemon.Index", INDICES[name]):
            app.main()


def _spoiled(kind: type[Counting], source: Callable[..., Any]) -> Callable[..., Counting]:
    return lambda **arguments: kind(source(**arguments))


if __name__ == "__main__":
    main()
