-- A change that touches many documents becomes a job that knows what caused it: see syncer/affected.py.
ALTER TABLE syncer.job ADD COLUMN cause jsonb, ADD COLUMN left_out bigint NOT NULL DEFAULT 0;

COMMENT ON COLUMN syncer.job.cause IS
    'Of a fan-out: by table, the images of the changed rows that lead to its documents, each once.';
COMMENT ON COLUMN syncer.job.left_out IS
    'Of a fan-out: how many of its documents were waiting in pages of other jobs, which write them: see syncer/listing.py.';
