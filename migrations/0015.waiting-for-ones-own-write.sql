-- What it takes to wait until a transaction is indexed: see syncer/waiting.py.

-- By a job's cause, and not by its clock: clocks are set back.
ALTER TABLE syncer.job ADD COLUMN caused_before xid8 NOT NULL DEFAULT pg_snapshot_xmax(pg_current_snapshot());

COMMENT ON COLUMN syncer.job.caused_before IS
    'Whatever caused the job, has joined it, or left documents to it, was committed by a transaction with a lesser id.';

ALTER TABLE syncer.relay_cursor ADD COLUMN adopted_in xid8 NOT NULL DEFAULT '0';

COMMENT ON COLUMN syncer.relay_cursor.adopted_in IS
    'The transaction that has made every row of the outbox its own, since no cursor was to be trusted; 0 if none has.';

ALTER TABLE syncer.dead_letter ADD COLUMN parked_in xid8 NOT NULL DEFAULT pg_current_xact_id();

COMMENT ON COLUMN syncer.dead_letter.parked_in IS
    'The transaction that has recorded it: a greater id than that of any change which the document was read to show.';

-- Tells one life of one database from another: after a failover or a restore, ids of transactions are given anew.
CREATE FUNCTION syncer.life() RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
AS $life$
    SELECT left(md5(concat_ws(' ', c.system_identifier, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8),
                              d.oid, 'syncer.version'::regclass::oid)), 8)
    FROM pg_control_system() AS c, pg_database AS d
    WHERE d.datname = current_database()
$life$;

COMMENT ON FUNCTION syncer.life IS 'Which life of which database this is; only on a primary.';

CREATE FUNCTION syncer.token() RETURNS text LANGUAGE sql VOLATILE
AS $token$
    SELECT pg_current_xact_id()::text || '.' || syncer.life()
$token$;

COMMENT ON FUNCTION syncer.token IS
    'Names the transaction that it is called in, for: syncer wait TOKEN. Asked for before the commit, used after it.';
