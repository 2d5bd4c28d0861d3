-- A job lists its ids range by range while its chunks are written, and a chunk in hand is an advisory lock: see
-- syncer/jobs/listing.py and syncer/jobs/chunks.py. A job that was being listed begins anew.

ALTER TABLE syncer.job
    ADD COLUMN is_listed boolean NOT NULL DEFAULT false,
    ADD COLUMN listed_to text,
    ADD COLUMN documents_expected bigint,
    DROP COLUMN measured_at,
    DROP COLUMN measured_done,
    DROP COLUMN measured_rate,
    DROP COLUMN compose_seconds,
    DROP COLUMN index_seconds;
ALTER TABLE syncer.job RENAME COLUMN documents_total TO documents_listed;

UPDATE syncer.job
SET is_listed = state NOT IN ('new', 'listing') AND documents_listed IS NOT NULL,
    documents_listed = coalesce(documents_listed, 0),
    sequence_numbers = CASE WHEN state <> 'listing' THEN sequence_numbers END,
    state = CASE state WHEN 'listing' THEN 'new' WHEN 'listed' THEN 'writing' WHEN 'written' THEN 'writing'
                       WHEN 'cleaned_up' THEN 'cleaning_up' ELSE state END;
ALTER TABLE syncer.job ALTER COLUMN documents_listed SET DEFAULT 0, ALTER COLUMN documents_listed SET NOT NULL;

COMMENT ON COLUMN syncer.job.is_listed IS 'Whether all chunks of its state exist: those of the ids, or of the orphans.';
COMMENT ON COLUMN syncer.job.listed_to IS 'The last id of the last range that was listed.';
COMMENT ON COLUMN syncer.job.documents_expected IS
    'How many documents it has, as far as the statistics of Postgres tell; null if they do not.';

ALTER TABLE syncer.job_chunk
    ADD COLUMN id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    DROP COLUMN taken_by,
    DROP COLUMN taken_at;
DROP SEQUENCE syncer.job_worker;

COMMENT ON COLUMN syncer.job_chunk.id IS 'The second half of the key of its advisory lock.';
