"""Locks made of Elasticsearch documents, for applications that have no relational database to lean on.

The sync path does not use them: where there is a database, it does all concurrency control. They are the three locks
of "Elasticsearch: The Definitive Guide" (global, document, tree), with an answer to what the guide leaves open: how to
know that a lock's holder has died, and what becomes of a change that it left half done.

    with Locks(client, owner="importer") as locks:
        with locks.documents("files", ["1", "2", "3"]) as held:
            held.write([Change(index="files", id="1", source={...}), ...])

How it is safe:

* **A lease.** Whoever locks has one document of its own, a *holder*, which a thread renews. Who waits for a lock
  watches the holder, and takes it for dead once it has not moved for as long as its lease, by the waiter's own clock:
  clocks are not compared.
* **A term.** Taking a holder for dead is one conditional write to its document, after which it can renew nothing. A
  lock is granted by a conditional write to one's own holder, and the sequence number of that write is the *term*:
  since all of it lives on one shard, who is granted a lock later has a greater one.
* **A fence.** `Held.write` writes each page in a term of its own, as external version. What a holder that came back
  from the dead still had on its way to a document that its successor has written is refused; so is a request of its own
  that was delayed until after its next one.
* **An intent.** Before `Held.write` changes the first document it puts down all that it is going to change, with what
  was there before, and has the holder's document refer to it, which fails for who is taken for dead. Whoever buries
  a holder finishes its intent or rolls it back, in later terms. So each document that the dead one may still be
  writing is written in a greater term before anybody else gets the lock. Who breaks a change off gives itself up, and
  keeps its locks until it is buried.

What it rests on: everybody who writes the protected documents does so under a lock, with `Held.write`; the index
of locks is neither closed, rolled over nor restored; ``index.gc_deletes`` of an index in which documents are made or
deleted is an hour.

    keeper    the locks: taken in order, waited for, given back       held      what is done under them: a change, whole
    burial    what becomes of a dead holder, and of its change
    lease     one's own holder, renewed                               watch     how others are seen to be dead
    fence     documents, written in a term
    registry  the indices, and what a term is
    entries   who has a lock, shares it, waits for it                 intents   what is going to be changed
    holders   who locks: a document that is written conditionally
    change    a change and an intent, as data                         names     the ids of locks
"""

from syncer.locks.change import Change, Recovery
from syncer.locks.held import Held
from syncer.locks.keeper import Locks

__all__ = ["Change", "Held", "Locks", "Recovery"]
