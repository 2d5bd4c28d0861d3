"""Locks made of Elasticsearch documents, for applications without a relational database.

The sync path does not use them: Postgres does all its concurrency control. They are the three locks of "Elasticsearch:
The Definitive Guide" (global, document, tree). They also answer what the guide leaves open: how to detect that a lock's
holder has died, and what to do about a change it left half done.

    with Locks(client, owner="importer") as locks:
        with locks.documents("files", ["1", "2", "3"]) as held:
            held.write([Edit(index="files", id="1", source={...}), ...])

How it is safe:

* **Lease.** Each process that locks has one document of its own, a *holder*, which a thread renews. A process that
  waits for a lock watches the holder. It considers the holder dead if it was not renewed for the length of its lease,
  by the waiting process's own clock: clocks are not compared.
* **Term.** Declaring a holder dead is one conditional write to its document; after that it can renew nothing. A lock is
  granted by a conditional write to one's own holder. The sequence number of that write is the *term*. All holders are
  on one shard, so a later grant has a greater term.
* **Fence.** `HeldLocks.write` writes each page in a term of its own, as the external version. Elasticsearch refuses a
  late request of a dead holder for a document that its successor has written. It also refuses a late request of a
  holder that has written the document again.
* **Intent.** Before `HeldLocks.write` changes a page of documents, it stores them as they are. The holder's document
  then refers to them by a conditional write, which fails if the holder was declared dead. The process that buries a
  holder restores these documents, in later terms. So each document that a dead holder may still be writing is written
  in a greater term before the next process gets the lock. A holder that can neither finish a change nor roll it back
  gives itself up, and keeps its locks until it is buried.

Requirements: all processes that write the protected documents do so under a lock, with `HeldLocks.write`. The index of
locks is never closed, rolled over or restored. If documents of an index are created or deleted under locks, its
``index.gc_deletes`` is at least an hour.

    keeper    the locks: acquired in order, waited for, released      held      changes made under locks, atomically
    burial    rolls back a dead holder's change, releases its locks   fence     document writes with a term
    lease     this process's holder, renewed                          registry  the two indices, and terms
    entries   the holders and waiters of each lock                    names     the ids of locks
    holders   the holders' documents, and which of them are dead      intents   documents as they were before a change
"""

from syncer.base.errors import LockError, LockLostError, LockTimeoutError
from syncer.locks.held import HeldLocks
from syncer.locks.intents import Edit
from syncer.locks.keeper import Locks

__all__ = ["Edit", "HeldLocks", "LockError", "LockLostError", "LockTimeoutError", "Locks"]
