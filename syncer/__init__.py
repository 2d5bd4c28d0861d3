"""syncer keeps Elasticsearch documents equal to the result of one SELECT in Postgres.

    applications ──commit──▶ Postgres tables ──trigger, same transaction──▶ syncer.outbox
    syncer.outbox ──▶ [relay ──▶ Kafka topic] ──▶ worker ──▶ affected documents ──▶ build in one snapshot
                                                                              └──▶ bulk write, external version
    fan-outs, loads, backfills ──▶ jobs, in chunks of ids ──▶ the same write path

Postgres does all concurrency control. Elasticsearch holds a replica that is never edited in place, only overwritten by
newer whole documents. The guarantees:

1. Every committed change reaches every document that shows it; a crash of any component loses nothing.
2. A document never goes back to an older state, however late, repeated or reordered a write is.
3. When writes stop, every document equals its SELECT, deletes included, and ``syncer verify`` proves it.
4. Backfills, rebuilds and repairs run beside live traffic without weakening 1 to 3.
5. Applications change nothing: plain SQL from any language.

The rule that makes them true, in `syncer.indexing`: assign a version together with a snapshot, read in it, then write.

The path of one UPDATE: `capture.triggers` writes an outbox row; `capture.reader` reads it with others, for `relay.loop`
if Kafka is used; `worker.loop` receives them from `worker.source`; `worker.resolve` and `documents.affected` find the
ids; `indexing.pool` hands them to a writer thread; `indexing.writer` builds (`indexing.compose`), sends
(`elasticsearch.bulk`) and settles; `worker.loop` saves the progress, in order.

The packages, from the top down; each uses only those below it, and its docstring says what it owns:

    cli             the commands and what they print; begin with `cli.app`
    demo, locks     beside the product: a blog whose author is renamed; the models and locks of Elasticsearch's guide
    testing         fixtures for users' own tests that search
    daemon          the threads of one process
    monitoring      status, problems, metrics; the status page (`web`) and the checks (`doctor`)
    relay           outbox → Kafka, if it is used
    worker          the main loop (`loop`): changes → documents; the job worker (`job_loop`)
    apply           desired definitions against active ones: plan, preview, activate, reindex
    drafts          the catalogue, or a SELECT → a definition to edit
    verify          compare documents with their SELECT, repair, `explain` one, `wait` for one's own write
    recovery        lost Kafka records, altered tables, orphan indices
    indexing        ids → documents built in one snapshot → Elasticsearch: the version rule, also across a failover
    jobs            durable work on many documents: a queue in Postgres, in chunks of ids
    documents       definitions, which are active, what they rely on, and which documents a change touches
    lineage         a SELECT → which document ids a changed row touches, as SQL
    kafka           the topic: create, produce, consume
    capture         triggers → outbox; the one process that reads it; progress
    elasticsearch   bulk requests, indices and aliases, reading back: of Elasticsearch or OpenSearch
    sandbox         Postgres, Kafka and Elasticsearch or OpenSearch on this machine, to try it on
    base            settings, errors and their policy, Postgres connections, retry, logging, metrics
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from syncer.verify.wait import Waited

__all__ = ["wait"]


def wait(token: str, *, timeout_seconds: float = 30, searchable: bool = False) -> Waited:
    """Return once everything that a transaction has committed is indexed.

    The settings are those of the command ``syncer``: ``config/syncer.yaml`` and the environment.

    Args:
        token: What ``SELECT syncer.token()`` has returned in that transaction.
        timeout_seconds: How long to wait.
        searchable: Whether to wait until searches show it, and not only reads by id.

    Raises:
        TokenError: The token is invalid, or its transaction did not commit in this database.
        WaitTimeoutError: The transaction is not indexed in time.
        SyncerError, psycopg.Error, elasticsearch.ApiError: The configuration is wrong.
    """
    from syncer.base import settings  # noqa: PLC0415 - every module of syncer imports this one
    from syncer.verify import wait as verify_wait  # noqa: PLC0415 - every module of syncer imports this one

    return verify_wait.wait(settings.load(), token, timeout_seconds=timeout_seconds, searchable=searchable)
