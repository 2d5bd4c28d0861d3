-- An UPDATE says which sets of watched columns it has left as they were, so that only the documents that show a changed
-- column are written. A set is named by a digest: see syncer/capture/triggers.py.

ALTER TABLE syncer.outbox ADD COLUMN untouched bigint[];
ALTER TABLE syncer.capture ADD COLUMN watched_together jsonb NOT NULL DEFAULT '[]';

COMMENT ON COLUMN syncer.outbox.untouched IS
    'Of an UPDATE: the sets of watched columns that it has not changed; null if that is unknown.';
COMMENT ON COLUMN syncer.capture.watched_together IS
    'The columns that each document watches, if not all watch the same.';

-- A trigger that was disabled for a while has another catalogue row, even if that was within one transaction.
ALTER TABLE syncer.capture ADD COLUMN triggers text[];

UPDATE syncer.capture AS c
SET triggers = (
    SELECT array_agg(format('%s %s', t.oid, t.xmin) ORDER BY t.oid)
    FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
    WHERE p.oid = to_regproc(format('syncer.%I', 'capture_' || c.relation))
);

COMMENT ON COLUMN syncer.capture.triggers IS
    'The catalogue rows of the triggers when all documents were last known to show the rows of the table.';
