"""syncer keeps Elasticsearch documents equal to what one SELECT says about Postgres.

    applications ──commit──▶ Postgres tables ──trigger, same transaction──▶ syncer.outbox
    syncer.outbox ──relay──▶ Kafka topic of changes ──workers──▶ which documents? ──▶ compose in one snapshot
                                                                              └──▶ bulk write, external version
    many documents, a backfill, a TRUNCATE ──▶ syncer.job, pages of ids ──refreshers──▶ compose, bulk write likewise

The database does all concurrency control. Elasticsearch holds a replica that is never edited in place, only
overwritten by newer whole documents. The promises:

1. Every committed change reaches every document that shows it; nothing is lost by a crash of any part.
2. A document never goes back to an older state, whatever is delayed, repeated, reordered or run twice.
3. When writes stop, every document equals its SELECT, deletes included, and ``syncer verify`` proves it.
4. Backfills run beside live traffic without weakening 1 to 3.
5. Applications change nothing: plain SQL from any language.

What makes them true is the version rule, in `syncer.writer`: draw a version, then read, then write.

To read the code, begin with `syncer.worker`, the main loop, and go outward. From the top of the house to its
ground; a module knows only those below it:

    cli          the commands; puts the parts together        …_commands                        some of them
    doctor       whether all is so that the promises hold     web        the status page, its API, metrics, health
    status_page  what status and top show to a person         letter_page  what a dead letter shows
    draft        a document's folder, from a table            trying     whether its document could be written now
    demo         a blog, a rename, a question; the guide's models
    plan         what apply would do, and what that costs     explain    why one document is as it is
    filling      jobs, followed on the screen                 comparing  documents, likewise
    locks        for who writes to Elasticsearch alone; the sync path does not use them
    terminal, findings   what commands show to a person
    manual       how the help of a command ends               completion what a shell offers
    entered      numbers and words that are typed
    parts        what a command works with
    service      the daemon's threads                         health     alive, ready: whether it is
    survey       … asked every few seconds, for who watches   overview   how it is doing
    gauges       what it was told, as metrics                 asking     a question to a server that may hang
    waiting      until a transaction is indexed               passage    its way there, stage by stage
    concern      what of it needs a person, and what to do
    rebuild      a new index beside the one that serves, until it takes its place
    apply        definitions → indices, triggers, generations
    steps        what apply will do to each document, before it does
    relay        outbox → topic                               worker     topic → documents: the main loop
    follower     what changes touch: handed on, or left to jobs
    membership   … what it is given to handle, by Kafka       change_batch changes that were received together
    refresher    pages of jobs → documents: the other lane    backfill   a job, followed to its end
    watch        tables and triggers → documents that halt
    verify       documents against their SELECT; repair       drift      how two documents differ
    looking      what differs, looked at again until it is known why
    listing      which documents a job writes: pages          job_pages  taken by lanes, finished, given back
    pipeline     composing while others are written           pace       how many at once
    gathering    … until enough changes are together
    writer       ids → written documents: the version rule
    refusal      what Elasticsearch's mean                    parking      documents at fault, set aside
    session      a writer's connection, and its lives
    owing        which jobs may yet come to a document        transit    whether what was committed is handled
    affected     changes → ids, if they are few               compose    ids → documents, in one snapshot
    halting      a document that cannot go on                 reading    a snapshot of tables that stay as they are
    unwell       an index that takes no documents for now: its changes wait in a job
    trial        what Elasticsearch makes of an index.json    incarnation  after a failover, a restore: refreshes
    grants       what a role of Postgres may do, by its duties
    loss         records that Kafka has lost                  leftover   indices that somebody who died has left
    jobs         made, paused, ended
    condition    a part of a document                         replica    documents read beside the primary
    job          work on many documents
    outbox       what the triggers wrote                      capture    which tables have triggers
    trigger      their SQL: a changed row → the outbox
    doorbell     … and wakes the relay, if it sleeps
    store        what syncer remembers in Postgres            version    epoch and sequence
    commit       a transaction, by its token
    dead_letters documents that could not be written          fault      why: which field, what type of value
    unreadable   records that are no changes                  rewrites   what Kafka took back: offsets count no further
    verification what the last verify has found
    producer     changes into Kafka                           consumer   … and out of it, and how far they are handled
    topic        what Kafka says of them                      records    what is in it, for who wants to know
    index        documents → Elasticsearch
    indices      physical indices and their aliases           holdings   what Elasticsearch holds
    dependency   what a document depends on                   definition a document's folder
    route        from changed rows to ids, as SQL             uses       what was found out, and is kept
    derivation   from a SELECT, which documents a row touches graph      its tables, conditions, paths
    scope        what its names stand for                     clause     its parts, and what competing rows share
    probe        what a query reads, asked of Postgres        shape      the columns and views that it relies on
    capturable   of which relations triggers see every change
    lifecycle    stop, wait, try again                        policy     error → what to do about it
    shards       which shard a routing leads to               wording    numbers and times, as a person says them
    threads      work beside a stage                          link       a stage's connection to Postgres
    schema       migrations                                   postgres   connections
    telemetry    which events are logged, and how             traces     … and what each batch was, as spans
    metrics      what is counted and measured                 collectors its kinds
    repeated     said once, and then counted                  settings   config/syncer.yaml and the environment
    searchable   how long until a search finds it
    events       what each line of the log means              secret_files  settings that are the content of a file
    model        what stages hand to one another              errors     the tree of errors
    sandbox      real servers to try it on
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from syncer.passage import Waited

__all__ = ["wait"]


def wait(token: str, *, timeout_seconds: float = 30, searchable: bool = False) -> Waited:
    """Return once everything that a transaction has committed is indexed; with `syncer.waiting.Waiter`, many do faster.

    The settings are those of the command ``syncer``: ``config/syncer.yaml`` and the environment.

    Args:
        token: What ``SELECT syncer.token()`` has returned in that transaction.
        timeout_seconds: How long to wait.
        searchable: Whether searches are to show it too, and not only reads by id.

    Raises:
        TokenError: There is nothing to wait for.
        WaitTimeoutError: It has not come to that in time.
        SyncerError, psycopg.Error, elasticsearch.ApiError: The set-up is wrong.
    """
    from syncer import settings, waiting  # noqa: PLC0415 - whoever imports a module of syncer's imports this one first

    with waiting.Waiter(settings.load()) as waiter:
        return waiter.wait(token, timeout_seconds=timeout_seconds, searchable=searchable)
