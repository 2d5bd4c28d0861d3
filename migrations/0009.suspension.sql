-- A suspended document is tried until it can be written; its changes wait in a fan-out, or it needs a refresh.

ALTER TABLE syncer.document
    DROP COLUMN suspended_by,
    ADD COLUMN suspended_ids text[] NOT NULL DEFAULT '{}',
    ADD COLUMN suspended_at timestamptz,
    ADD COLUMN is_stale boolean NOT NULL DEFAULT false;
UPDATE syncer.document SET is_stale = true, suspended_at = now() WHERE suspended IS NOT NULL;

COMMENT ON COLUMN syncer.document.suspended_ids IS 'Documents to try before it is resumed.';
COMMENT ON COLUMN syncer.document.is_stale IS 'Whether it was suspended and needs a refresh when it is resumed.';

-- A dead letter keeps the server's words. Documents at fault are found by halving what is read together.
ALTER TABLE syncer.dead_letter DROP COLUMN field, DROP COLUMN value_type;
DROP FUNCTION syncer.faults(text, text[], float8);
