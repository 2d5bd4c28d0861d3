"""The two loops that write documents: live changes from the topic, and chunks of jobs. Begin with `syncer.worker.loop`.

    loop            poll a batch of changes, resolve, write; decides which offsets may be committed, in order
    group           receives and parses records as a member of the consumer group; sets apart what it cannot read
    batch           changes that were received together, and what became of them
    resolve         submits the documents that changes touch to the writers; makes a job of a fan-out
    job_loop        take chunks of jobs and write them
    foreground      follow a job to its end, for a command; work on it if no daemon does

Guarantees: an offset is committed, and a chunk finished, only when each of its documents is settled. Settled means
written, up to date, dead-lettered, left to a job, or of a suspended definition.
Both loops write through `syncer.indexing` only.
"""
