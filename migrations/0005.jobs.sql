-- Jobs: work on many documents, done by whichever daemons run, from where it was left. See syncer/jobs.py.
-- The order in which rows are locked, by all who lock several: document, job, page.

CREATE TABLE syncer.job (
    id                bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    kind              text        NOT NULL,
    document          text        NOT NULL,
    -- Deferred, so that who makes a job of many ids keeps no generation from coming while he reads them.
    index_name        text        NOT NULL REFERENCES syncer.document ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    generation        bigint      NOT NULL,
    state             text        NOT NULL DEFAULT 'new',
    is_paused         boolean     NOT NULL DEFAULT false,
    condition         text,
    rate              float8      CHECK (rate > 0 AND rate < 'infinity'),
    fills             boolean     NOT NULL,
    error             text,
    sequence_numbers  jsonb,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at        timestamptz,
    finished_at       timestamptz,
    -- Pages are numbered from 0 and taken in that order. One that is given back gets another number, after all others.
    pages_next        integer     NOT NULL DEFAULT 0,
    pages_end         integer     NOT NULL DEFAULT 0,
    pages_left        integer     NOT NULL DEFAULT 0,
    served_at         timestamptz NOT NULL DEFAULT '-infinity',
    next_at           timestamptz NOT NULL DEFAULT '-infinity',
    documents_total   bigint,
    documents_done    bigint      NOT NULL DEFAULT 0,
    indexed           bigint      NOT NULL DEFAULT 0,
    deleted           bigint      NOT NULL DEFAULT 0,
    superseded        bigint      NOT NULL DEFAULT 0,
    parked            bigint      NOT NULL DEFAULT 0,
    compose_seconds   float8      NOT NULL DEFAULT 0,
    index_seconds     float8      NOT NULL DEFAULT 0,
    -- How fast it goes: what was done, and when, at the beginning of a few seconds; the rate of the few before.
    measured_at       timestamptz,
    measured_done     bigint      NOT NULL DEFAULT 0,
    measured_rate     float8
) WITH (fillfactor = 50);

COMMENT ON COLUMN syncer.job.fills IS
    'Whether its end means that every document has been written once: not if changes may have been missed since.';
COMMENT ON COLUMN syncer.job.sequence_numbers IS
    'The greatest _seq_no of each shard before the first document was written: see the sweep in syncer/listing.py.';

-- So that who has written knows whether somebody began to list all documents since he read them: see syncer/writer.py.
ALTER TABLE syncer.document ADD COLUMN listings bigint NOT NULL DEFAULT 0;

-- The ids that are yet to be written. A row goes away with the page's progress, in one transaction.
CREATE TABLE syncer.job_page (
    job         bigint  NOT NULL REFERENCES syncer.job ON DELETE CASCADE,
    number      integer NOT NULL,
    ids         text[]  NOT NULL,
    everywhere  boolean NOT NULL DEFAULT false,
    taken_by    integer,
    taken_at    timestamptz,
    PRIMARY KEY (job, number)
) WITH (fillfactor = 80);

-- Compressing the ids takes as long as listing them.
ALTER TABLE syncer.job_page ALTER COLUMN ids SET STORAGE EXTERNAL;

-- A lane is known by a number of its own, and alive as long as its session holds the advisory lock on it.
CREATE SEQUENCE syncer.lane AS integer CYCLE;
