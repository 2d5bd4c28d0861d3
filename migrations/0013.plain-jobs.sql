-- A job has no rate of its own: it makes way for live changes by itself. A partial backfill is of given ids.
DELETE FROM syncer.job WHERE condition IS NOT NULL;
ALTER TABLE syncer.job DROP COLUMN rate, DROP COLUMN next_at, DROP COLUMN condition;
