"""Rules of the locks that protect more than one test, each with the mutation that takes it out: see `tests.proof`."""

from __future__ import annotations

from tests.mutations import DOES_NOTHING, SAYS_NO, Replaces
from tests.mutations.locks import buries_without_recovery, overlooks_that_it_is_dead, without_versions
from tests.proof import Rule

FENCE = Rule(
    "a document is written with a term of the lock as its version",
    patch="syncer.locks.fence:_operations",
    instead=without_versions,
)
RECOVERY = Rule(
    "an owner that takes over a lock rolls back the dead holder's change",
    patch="syncer.locks.burial:_bury",
    instead=buries_without_recovery,
)
DEATH = Rule(
    "a holder that was declared dead can store no intent",
    patch="syncer.locks.lease:Lease._look",
    instead=overlooks_that_it_is_dead,
)
EXCLUSION = Rule(
    "a request for a lock waits for its exclusive holder",
    patch="syncer.locks.entries:_TAKE",
    instead=Replaces("if (mode == 'exclusive' ||", "if (false ||"),
)
BROKEN_OFF = Rule(
    "a holder that aborted a change keeps its locks until the change is rolled back",
    patch="syncer.locks.lease:Lease.is_unfinished",
    instead=SAYS_NO,
)
UNSURE = Rule(
    "an owner that does not know whether it has an entry in a lock leaves, and returns as a new holder",
    patch="syncer.locks.keeper:Locks._leave_if_unsure",
    instead=DOES_NOTHING,
)
