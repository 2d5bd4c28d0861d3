-- What identifies a table's files and triggers is one list, which is compared as a whole.
UPDATE syncer.capture SET files = files || triggers;
ALTER TABLE syncer.capture DROP COLUMN triggers;

-- Changes of a table that lead to the same documents share a partition: no column is named for that.
ALTER TABLE syncer.capture DROP COLUMN aggregate, DROP COLUMN aggregate_column;

COMMENT ON COLUMN syncer.capture.files IS
    'The files and triggers of the table and its partitions when all documents were last known to show their rows.';
