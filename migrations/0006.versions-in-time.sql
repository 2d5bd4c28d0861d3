-- When versions were drawn: see DrawLog in syncer/version.py. Each row is true by itself, so any of them may be forgotten.
CREATE TABLE syncer.version_time (
    version       bigint      PRIMARY KEY,
    drawn_before  timestamptz NOT NULL,
    greater_after timestamptz NOT NULL
);

COMMENT ON COLUMN syncer.version_time.drawn_before IS 'This version, and every lesser one of its epoch, was drawn before.';
COMMENT ON COLUMN syncer.version_time.greater_after IS 'Every greater version was drawn after.';
