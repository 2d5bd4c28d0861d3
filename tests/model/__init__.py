"""The protocol as small models, each explored whole: every order of steps, every crash, every stall.

    explorer        breadth first through all states of a model; the shortest way to one that is wrong, in words
    writing         the version rule: receive, draw, read, write        kept by  worker, compose, writer, index
    routing         from a changed row to the documents that show it             trigger, derivation, affected
    relaying        outbox → topic                                               relay, outbox
    doorbell        a relay that sleeps is woken                                 doorbell
    sweeping        a job beside live traffic, and what only Elasticsearch has   listing, refresher, writer
    fanning         fan-outs that join others, and leave ids to them             listing, jobs, job_pages
    reindexing      a new definition, a new index, the alias, the way back       apply, rebuild, compose, index
    halting         a document that cannot go on, and the next generation        halting, apply, jobs
    incarnations    crash, failover, restore: versions that never go back        version, incarnation
    replaying       documents read on a replica                                  replica

To run them: python -m tests.model. What is learnt from them: docs/protocol.md.
"""
