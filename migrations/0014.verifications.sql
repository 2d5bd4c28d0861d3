-- What the last comparison of each index with its SELECT has found, for who watches: see syncer/verification.py.
CREATE TABLE syncer.verification (
    index_name  text        PRIMARY KEY REFERENCES syncer.document (index_name) ON DELETE CASCADE,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    documents   bigint      NOT NULL,
    drifted     bigint      NOT NULL,
    repaired    bigint      NOT NULL,
    is_complete boolean     NOT NULL
);

COMMENT ON COLUMN syncer.verification.drifted IS 'How many documents were left different from their SELECT.';
COMMENT ON COLUMN syncer.verification.is_complete IS 'Whether all were counted: it stops when there are too many.';
