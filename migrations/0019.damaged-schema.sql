-- A row of a segment whose table was dropped goes here: a trigger never makes a write fail.
CREATE TABLE syncer.outbox_default PARTITION OF syncer.outbox DEFAULT;
ALTER TABLE syncer.outbox_default REPLICA IDENTITY FULL;

-- A pooler may send some statements of a session to a standby, whose snapshots list no running transaction.
CREATE FUNCTION syncer.is_primary() RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $is_primary$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE 'a standby has answered, whose snapshots do not show which transactions are running'
            USING ERRCODE = 'read_only_sql_transaction',
                  HINT = 'Let postgres.dsn name the primary alone, not a pooler or driver that balances the load.';
    END IF;
    RETURN true;
END
$is_primary$;

COMMENT ON FUNCTION syncer.is_primary IS
    'An error on a standby. In the WHERE of each statement whose snapshot decides how far changes are read or handled.';

COMMENT ON COLUMN syncer.outbox.operation IS 'I, U, D, T for TRUNCATE, or N for what only the catalogue shows.';
