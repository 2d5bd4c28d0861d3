"""Rules of the locks that protect more than one test, each with the mutation that takes it out: see `tests.proof`."""

from __future__ import annotations

from tests.proof import Rule

FENCE = Rule(
    "a document is written with a term of the lock as its version",
    module="syncer.locks.fence",
    text="{**_place(one), **version}",
    instead="_place(one)",
)
RECOVERY = Rule(
    "whoever takes a lock over finishes or rolls back what its holder had put down",
    module="syncer.locks.burial",
    text="if dead.intent is not None:",
    instead="if False:",
)
DEATH = Rule(
    "who is taken for dead can put down nothing more",
    module="syncer.locks.lease",
    text="if found is None or found[0].is_dead:",
    instead="if found is None:",
)
EXCLUSION = Rule(
    "who wants a lock waits for who has it alone",
    module="syncer.locks.entries",
    text="if (mode == 'exclusive' ||",
    instead="if (false ||",
)
BROKEN_OFF = Rule(
    "who has broken a change off keeps its locks until that is finished or rolled back",
    module="syncer.locks.keeper",
    text="if self._lease.is_unfinished or not kept:",
    instead="if not kept:",
)
UNSURE = Rule(
    "who does not know whether it has an entry in a lock leaves, and comes back as somebody else",
    module="syncer.locks.keeper",
    text="if self._is_unsure and not self._held:",
    instead="if False:",
)
