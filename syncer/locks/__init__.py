"""Locks made of Elasticsearch documents, for applications without a relational database.

The sync path does not use them: Postgres does all its concurrency control. They are the three locks of "Elasticsearch:
The Definitive Guide" (global, document, tree). They also answer what the guide leaves open: how to detect that a lock's
holder has died, and what to do about a change it left half done.

    locks = Locks(client, owner="importer")
    with locks.documents("files", ["1", "2", "3"]) as held:
        held.write([Edit(index="files", id="1", source={...}), ...])

How it is safe (docs/locks.md has the protocol):

* **Table.** All holders are in one document, written only if it is as it was read.
* **Lease.** A thread renews a holder's entry. If it is unchanged for the length of its lease, by the clock of a process
  that waits for the lock, the holder is considered dead: clocks are not compared.
* **Take-over.** That process enters itself as the entry's writer. From then on the dead holder can write it no more.
* **Fence.** The sequence number of a write of the table is a *term*. Documents are written with it as their external
  version, so Elasticsearch refuses what arrives after a write in a later term.
* **Roll-back.** Before documents are changed, they are stored as they are. The process that takes a dead holder over
  restores them in later terms, and then removes the entry. So each document that a dead holder may still be writing has
  a greater version before the next process gets the lock. If the process dies meanwhile, the next one begins again.

Requirements: all processes that write the protected documents do so under a lock, with `HeldLocks.write`. The index of
locks is never closed, rolled over or restored, nor deleted while a program uses it. If documents of an index are
created or deleted under locks, its ``index.gc_deletes`` is at least an hour.

    locks   acquires locks, waits for them, buries dead holders     table   the index of locks, and terms
    held    a holder: its lease, its changes, roll-back             edits   documents, written with a term
"""

from syncer.base.errors import LockError, LockLostError, LockTimeoutError
from syncer.locks.edits import Edit
from syncer.locks.held import HeldLocks
from syncer.locks.locks import Locks

__all__ = ["Edit", "HeldLocks", "LockError", "LockLostError", "LockTimeoutError", "Locks"]
