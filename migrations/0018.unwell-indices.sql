-- An index that takes no documents keeps those of no other index waiting: see syncer/unwell.py.
ALTER TABLE syncer.document
    ADD COLUMN unwell    text,
    ADD COLUMN unwell_at timestamptz;

COMMENT ON COLUMN syncer.document.unwell IS
    'Why the index takes no documents for now; what to do in further lines. Its jobs wait, and so do its changes.';

-- The ids that a catch-up has yet to list, each once.
CREATE TABLE syncer.postponed (
    job bigint NOT NULL REFERENCES syncer.job ON DELETE CASCADE,
    id  text   NOT NULL
);
-- By hash, since an id may be longer than any key of another index.
CREATE INDEX postponed_id ON syncer.postponed USING hash (id);
CREATE INDEX postponed_job ON syncer.postponed (job);

COMMENT ON TABLE syncer.postponed IS
    'Documents that changed while their index took none: a job of theirs writes them once it does.';
