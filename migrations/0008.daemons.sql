-- Each daemon reports every two seconds: see syncer/monitoring/daemons.py.

CREATE TABLE syncer.daemon (
    id                   uuid        PRIMARY KEY,
    host                 text        NOT NULL,
    process              integer     NOT NULL,
    version              text        NOT NULL,
    started_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    reported_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    components           text[]      NOT NULL,
    leads                boolean     NOT NULL,
    written_per_second   float8      NOT NULL,
    troubles             jsonb       NOT NULL
);

COMMENT ON TABLE syncer.daemon IS
    'The daemons that run. A row whose reported_at is older than some seconds is of one that hangs or is gone.';
COMMENT ON COLUMN syncer.daemon.leads IS 'Whether it is the one that reads the outbox.';
COMMENT ON COLUMN syncer.daemon.written_per_second IS 'Documents that it has written or deleted since its last report.';
COMMENT ON COLUMN syncer.daemon.troubles IS
    'What its components are retrying: component, server, kind, seconds since the first failed attempt began, error, hint.';
