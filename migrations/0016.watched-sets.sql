-- What a table's triggers watch is one fact: the set of columns of each document. See syncer/capture/triggers.py.
UPDATE syncer.capture
SET watched_together = jsonb_build_array(to_jsonb(ARRAY(SELECT DISTINCT unnest(watched || routing) ORDER BY 1)))
WHERE watched_together = '[]';
ALTER TABLE syncer.capture DROP COLUMN watched;
ALTER TABLE syncer.capture RENAME COLUMN watched_together TO watched;

COMMENT ON COLUMN syncer.capture.watched IS 'The set of columns that each document watches.';
