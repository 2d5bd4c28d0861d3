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

-- What decides whether a trigger can write to the outbox, and a reader read it. Not STABLE: that would read in the snapshot
-- of the application's statement, which may be older than the lock of the outbox.
CREATE FUNCTION syncer.outbox_shape() RETURNS text[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $shape$
BEGIN
    RETURN ARRAY(
        WITH t (oid) AS (
            SELECT to_regclass('syncer.outbox')::oid
            UNION ALL
            SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass('syncer.outbox')
        )
        SELECT format('column syncer.outbox.%s %s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
                      CASE WHEN a.attnotnull THEN ' NOT NULL' END,
                      CASE WHEN a.attidentity <> '' THEN ' IDENTITY' WHEN a.atthasdef THEN ' DEFAULT' END)
        FROM pg_attribute AS a
        WHERE a.attrelid = to_regclass('syncer.outbox') AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT format('NOT NULL of column %s of %s', s.attname, s.attrelid::regclass)
        FROM pg_attribute AS a JOIN t ON a.attrelid = to_regclass('syncer.outbox') AND a.attnum > 0 AND NOT a.attnotnull
        JOIN pg_attribute AS s ON s.attrelid = t.oid AND s.attname = a.attname AND s.attnotnull
        UNION ALL
        SELECT format('constraint %s of %s', c.conname, c.conrelid::regclass)
        FROM t JOIN pg_constraint AS c ON c.conrelid = t.oid AND c.contype IN ('c', 'f')
        UNION ALL
        SELECT format('unique index %s', i.indexrelid::regclass)
        FROM t JOIN pg_index AS i ON i.indrelid = t.oid AND (i.indisunique OR i.indisexclusion)
        UNION ALL
        SELECT format('trigger %s of %s', g.tgname, g.tgrelid::regclass)
        FROM t JOIN pg_trigger AS g ON g.tgrelid = t.oid AND g.tgparentid = 0
        UNION ALL
        SELECT format('rule %s of %s', r.rulename, r.ev_class::regclass)
        FROM t JOIN pg_rewrite AS r ON r.ev_class = t.oid
        UNION ALL
        SELECT format('row security of %s', c.oid::regclass)
        FROM t JOIN pg_class AS c USING (oid) WHERE c.relrowsecurity
        UNION ALL
        SELECT format('unlogged table %s', c.oid::regclass)
        FROM t JOIN pg_class AS c USING (oid) WHERE c.relpersistence = 'u'
        UNION ALL
        SELECT format('the end of sequence syncer.outbox_id_seq at %s', q.seqmax)
        FROM pg_sequence AS q WHERE q.seqrelid = to_regclass('syncer.outbox_id_seq')
        ORDER BY 1
    );
END
$shape$;

-- A migration that alters the outbox creates this function again. Stable, so that a WHERE clause calls it before it reads.
DO $do$
BEGIN
    EXECUTE format($create$
        CREATE FUNCTION syncer.require_outbox() RETURNS boolean LANGUAGE plpgsql STABLE
        SET search_path = pg_catalog, pg_temp
        AS $body$
        BEGIN
            IF syncer.outbox_shape() <> %L THEN
                RAISE 'syncer.outbox was altered';
            END IF;
            RETURN true;
        END
        $body$
    $create$, syncer.outbox_shape());
END
$do$;

-- Immutable, so that it costs nothing: Postgres calls it when it plans a statement, and plans one anew once its table was
-- altered. Null where the snapshot may be older than that.
CREATE FUNCTION syncer.is_intact() RETURNS boolean LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $intact$
BEGIN
    RETURN CASE WHEN current_setting('transaction_isolation') = 'read committed' THEN syncer.require_outbox() END;
END
$intact$;

COMMENT ON FUNCTION syncer.is_intact IS 'True; or an error, if writing to the outbox may fail.';

-- Used once a trigger could not write a change: the schema is broken from then on.
CREATE SEQUENCE syncer.lost;
