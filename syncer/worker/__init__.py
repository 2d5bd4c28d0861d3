"""The two loops that write documents: live changes, and chunks of jobs. Begin with `syncer.worker.loop`.

    loop            receive a batch of changes, resolve, write; save the progress, in order
    source          where changes come from: the outbox, or the topic
    resolve         submits the documents that changes touch to the writers; makes a job of a fan-out
    job_loop        take chunks of jobs and write them; follow a job to its end, for a command

What each thread holds:

    worker-1            the batches in hand, in order; the source, which is the lead or a membership in the group
    worker-1-writer-1   a connection, and one slice: see `syncer.indexing.pool`
    job_worker          the chunks in hand, each a lock of its session; steps of jobs that are tried again later

Guarantees: a change is saved as handled, and a chunk finished, only when each of its documents is settled. Settled
means written, up to date, dead-lettered, left to a job, or of a suspended definition.
Both loops write through `syncer.indexing` only.
"""
