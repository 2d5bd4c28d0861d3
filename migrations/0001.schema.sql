-- All that syncer keeps in Postgres, but for `syncer.migration`, which records the migrations, and the functions of the
-- triggers, which `syncer apply` creates. The role that runs `syncer migrate` owns what is here.

-- Capture -------------------------------------------------------------------------------------------------------------

-- The outbox: one row per changed row, written by a trigger in the application's own transaction. Its reader selects by
-- xid, with a snapshot as cursor. It is partitioned into segments so that rows that were read leave by TRUNCATE: a DELETE
-- would leave dead rows that one long transaction keeps from being vacuumed. It has no CHECK constraint, because Postgres
-- would parse it again for every statement of an application.
CREATE TABLE syncer.outbox (
    segment    bigint      NOT NULL,
    id         bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    xid        xid8        NOT NULL DEFAULT pg_current_xact_id(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    relation   text        NOT NULL,
    operation  "char"      NOT NULL,
    old        jsonb,
    new        jsonb,
    untouched  bigint[]
) PARTITION BY LIST (segment);

COMMENT ON COLUMN syncer.outbox.operation IS
    'I, U, D, T for TRUNCATE, or N for what only the catalogue shows, such as a table that was rewritten.';
COMMENT ON COLUMN syncer.outbox.old IS
    'By name, the text of each column that leads to documents, before the change; null if the images are too large.';
COMMENT ON COLUMN syncer.outbox.new IS 'The same, after the change.';
COMMENT ON COLUMN syncer.outbox.untouched IS
    'Of an UPDATE: the sets of watched columns that it has not changed, each as a hash of names; null if unknown.';

-- Pages of a transaction, however large it is, are read by this index.
CREATE INDEX outbox_xid ON syncer.outbox (xid, id);

-- The segments. A row of a segment whose table was dropped goes into the default one, so that the write does not fail.
-- A publication of all tables lets no row be updated of a table without a replica identity, and the rows of the outbox
-- are updated where a dump is restored: see `syncer.capture.progress.adopt`.
DO $$
BEGIN
    FOR number IN 0..7 LOOP
        EXECUTE format('CREATE TABLE syncer.outbox_%s PARTITION OF syncer.outbox FOR VALUES IN (%1$s)', number);
        EXECUTE format('ALTER TABLE syncer.outbox_%s REPLICA IDENTITY FULL', number);
    END LOOP;
END
$$;
CREATE TABLE syncer.outbox_default PARTITION OF syncer.outbox DEFAULT;
ALTER TABLE syncer.outbox_default REPLICA IDENTITY FULL;

-- The segment that is written now. A sequence, because every transaction sees its value at once, whatever its isolation
-- level. A transaction that saw the previous value may still write the previous segment, so all segments are read, and
-- none is emptied without its lock.
CREATE SEQUENCE syncer.outbox_segment MINVALUE 0 MAXVALUE 7 START 0;

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

-- A later migration that alters the outbox creates this function again. Stable, so that a WHERE clause calls it before it reads.
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

COMMENT ON FUNCTION syncer.is_intact IS
    'True, or an error if writing to the outbox may fail; null if the transaction is not READ COMMITTED.';

-- Used once a trigger could not write a change: the schema is broken from then on.
CREATE SEQUENCE syncer.lost;

-- How the triggers read each captured table.
CREATE TABLE syncer.capture (
    relation text   PRIMARY KEY,
    routing  text[] NOT NULL,
    watched  jsonb  NOT NULL DEFAULT '[]',
    files    text[]
);

COMMENT ON COLUMN syncer.capture.watched IS 'The sets of columns whose changes matter to documents.';
COMMENT ON COLUMN syncer.capture.files IS
    'Relfilenodes and triggers of the table and its partitions, and by number the transactions that wrote its captured '
    'columns into the catalogue, when all documents were last known to show their rows.';

-- The text of a value of any type. The triggers call it only for types that may print more than they store. It uses the
-- type's output function, never a cast, which a user may have defined. The settings are those that the text of some
-- types depends on, because another session reads the text back. The subtransaction writes nothing and gets no xid.
CREATE FUNCTION syncer.text_of(value anyelement, characters_max integer) RETURNS text
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
SET DateStyle = 'ISO' SET IntervalStyle = 'iso_8601' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C'
AS $text$
BEGIN
    IF pg_column_size(value) <= characters_max THEN
        RETURN left(concat(value), characters_max);
    END IF;
    RETURN repeat('?', characters_max);
EXCEPTION WHEN OTHERS THEN
    RETURN repeat('?', characters_max);
END
$text$;

COMMENT ON FUNCTION syncer.text_of IS
    'The first characters of what a type prints. A value that is too large, or does not print, counts as one so long.';

-- Progress ------------------------------------------------------------------------------------------------------------

-- How far the outbox was read, and how far what was read is handled: see `syncer.capture.progress`.
CREATE TABLE syncer.cursor (
    id         bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    written_in xid8        NOT NULL DEFAULT pg_current_xact_id(),
    snapshot   pg_snapshot NOT NULL,
    saved_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz,
    changes    bigint      NOT NULL,
    numbers    jsonb       NOT NULL,
    adopted_in xid8        NOT NULL
);

COMMENT ON TABLE syncer.cursor IS
    'Everything visible in the snapshot is published, or written if numbers is empty. The newest row is where to go on.';
COMMENT ON COLUMN syncer.cursor.written_in IS
    'The transaction that wrote the row. In a dump that is restored, xmin is another one.';
COMMENT ON COLUMN syncer.cursor.changed_at IS 'When the oldest change was made that the cursor before did not see.';
COMMENT ON COLUMN syncer.cursor.changes IS 'How many changes have been read so far, in all.';
COMMENT ON COLUMN syncer.cursor.numbers IS 'By partition, the number of the last record that Kafka has acknowledged.';
COMMENT ON COLUMN syncer.cursor.adopted_in IS
    'The transaction that took over every row of the outbox because no cursor could be trusted; 0 if none did.';

CREATE TABLE syncer.partition (
    partition   integer     PRIMARY KEY,
    next_offset bigint,
    number      bigint      NOT NULL,
    saved_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE syncer.partition IS 'What workers have handled of each partition of the topic.';
COMMENT ON COLUMN syncer.partition.number IS 'The greatest number of a record that is handled, or covered by a refresh.';

CREATE TABLE syncer.term (
    number bigint PRIMARY KEY,
    name   uuid   NOT NULL DEFAULT gen_random_uuid()
);

COMMENT ON TABLE syncer.term IS 'The leaderships in the history of this database. Records of other ones do not count.';
COMMENT ON COLUMN syncer.term.number IS 'The numbers of its records begin with it, so that none is used twice.';
COMMENT ON COLUMN syncer.term.name IS 'Its records have it. Of two primaries, both may begin a term with one number.';

-- The newest cursor up to which everything is handled, and since when the oldest change waits that was read.
CREATE VIEW syncer.handled AS
SELECT coalesce(h.id, 0) AS id, h.snapshot, coalesce(h.changes, 0) AS changes,
       (SELECT min(w.changed_at) FROM syncer.cursor AS w WHERE w.id > coalesce(h.id, 0)) AS waiting_since
FROM (VALUES (true)) AS always (row) LEFT JOIN LATERAL (
    SELECT c.id, c.snapshot, c.changes FROM syncer.cursor AS c
    WHERE NOT EXISTS (
        SELECT FROM jsonb_each_text(c.numbers) AS n LEFT JOIN syncer.partition AS p ON p.partition = n.key::integer
        WHERE coalesce(p.number, 0) < n.value::bigint
    )
    ORDER BY c.id DESC LIMIT 1
) AS h ON true;

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

-- Versions ------------------------------------------------------------------------------------------------------------

-- A version is epoch << 51 | nextval << 8. The gap is for clients that raise the version of a document by one, as
-- _update_by_query does: they do not reach the next version.
CREATE SEQUENCE syncer.version MAXVALUE 8796093022207;

-- The installation, which its indices name, and the epoch that its versions begin with.
CREATE TABLE syncer.installation (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    installation uuid    NOT NULL DEFAULT gen_random_uuid(),
    epoch        bigint  NOT NULL DEFAULT 0 CHECK (epoch < 1 << 12)
);

INSERT INTO syncer.installation DEFAULT VALUES;

-- The database that has entered the epoch, as long as the row is there: a failover, a crash and a base backup lose what
-- is in an unlogged table. Another transaction has written it in a dump that is restored; a copied database has another OID.
CREATE UNLOGGED TABLE syncer.cluster_identity (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    name       uuid        NOT NULL DEFAULT gen_random_uuid(),
    database   oid         NOT NULL,
    written_in xid8        NOT NULL DEFAULT pg_current_xact_id(),
    started_at timestamptz NOT NULL DEFAULT pg_postmaster_start_time()
);

COMMENT ON COLUMN syncer.cluster_identity.written_in IS
    'The transaction that wrote the row. In a dump that is restored, xmin is another one.';
COMMENT ON COLUMN syncer.cluster_identity.started_at IS 'When the server was started in which a writer last connected.';

-- Applications call syncer.token().
GRANT SELECT ON syncer.cluster_identity TO PUBLIC;

-- The last mark: up to where documents show only what a database with this row has. See `syncer.indexing.marks`.
CREATE TABLE syncer.mark (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    number       bigint  NOT NULL DEFAULT 0,
    last_version bigint  NOT NULL DEFAULT 0,
    positions    jsonb   NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

COMMENT ON COLUMN syncer.mark.last_version IS 'The last number of the sequence of versions.';
COMMENT ON COLUMN syncer.mark.positions IS
    'By index: its uuid, and by shard the global checkpoint and the uuid of the history.';

INSERT INTO syncer.mark DEFAULT VALUES;

-- Serialises the assignment of versions: a writer locks it while it takes a version and the snapshot that goes with it.
CREATE TABLE syncer.version_lock ();

-- Definitions ---------------------------------------------------------------------------------------------------------

-- A definition as it was applied, and the physical index that it is written to. A definition has two rows while an index
-- is rebuilt, and each is followed on its own: see `syncer.documents.registry`.
CREATE TABLE syncer.document (
    index_name    text        PRIMARY KEY,
    name          text        NOT NULL,
    revision      bigint      NOT NULL,
    role          text        NOT NULL DEFAULT 'current' CHECK (role IN ('current', 'building')),
    definition    jsonb       NOT NULL,
    accepted      jsonb,
    applied_at    timestamptz NOT NULL DEFAULT now(),
    loaded_at     timestamptz,
    suspended     text,
    suspended_ids text[]      NOT NULL DEFAULT '{}',
    suspended_at  timestamptz,
    is_stale      boolean     NOT NULL DEFAULT false,
    stale_since   timestamptz DEFAULT now(),
    listings      bigint      NOT NULL DEFAULT 0,
    UNIQUE (name, revision),
    UNIQUE (name, role) DEFERRABLE INITIALLY DEFERRED
);

COMMENT ON COLUMN syncer.document.role IS 'current: searches find it. building: they will, once it is loaded.';
COMMENT ON COLUMN syncer.document.accepted IS
    'What its SELECT reads in the catalogue, if that differs from what was applied without changing any document.';
COMMENT ON COLUMN syncer.document.suspended IS 'What happened and what to do; null if the definition is followed.';
COMMENT ON COLUMN syncer.document.suspended_ids IS 'Documents to try before it is resumed.';
COMMENT ON COLUMN syncer.document.is_stale IS 'Whether it was suspended and needs a refresh when it is resumed.';
COMMENT ON COLUMN syncer.document.stale_since IS
    'Since when its index may lack changes: it was suspended, or activated, or changes were lost. Null once it is loaded.';
COMMENT ON COLUMN syncer.document.listings IS
    'How often a job began to list all documents: a writer whose read is older than the last time writes again.';

-- The last revision of each definition. None is used twice, though its row may be gone: a late worker names its own.
CREATE TABLE syncer.revision (
    document text   PRIMARY KEY,
    last     bigint NOT NULL
);

-- Indices that were created and are not active, of an apply that died, or replaced ones. They must be dropped: see
-- `syncer.recovery.orphan_indices`.
CREATE TABLE syncer.orphan_index (
    index_name text PRIMARY KEY
);

-- What the last comparison of each index with its SELECT found: see `syncer.verify.compare`.
CREATE TABLE syncer.verification (
    index_name  text        PRIMARY KEY REFERENCES syncer.document ON DELETE CASCADE,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    documents   bigint      NOT NULL,
    drifted     bigint      NOT NULL,
    repaired    bigint      NOT NULL,
    is_complete boolean     NOT NULL
);

COMMENT ON COLUMN syncer.verification.drifted IS
    'How many documents differed from their SELECT for no reason that is known, and were not repaired.';
COMMENT ON COLUMN syncer.verification.is_complete IS
    'Whether all documents were compared: a comparison ends after too many that differ.';

-- Jobs ----------------------------------------------------------------------------------------------------------------

-- Durable work on many documents, done by any daemon or command: see `syncer.jobs`. A transaction that locks several
-- rows locks them in this order: document, job, chunk.
CREATE TABLE syncer.job (
    id                 bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    kind               text        NOT NULL,
    document           text        NOT NULL,
    -- Deferred, so that reading the ids of a new job does not block an apply.
    index_name         text        NOT NULL REFERENCES syncer.document ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    revision           bigint      NOT NULL,
    state              text        NOT NULL DEFAULT 'new',
    is_paused          boolean     NOT NULL DEFAULT false,
    cause              jsonb,
    occasion           text,
    caused_before      xid8        NOT NULL DEFAULT pg_snapshot_xmax(pg_current_snapshot()),
    completes_load     boolean     NOT NULL,
    error              text,
    sequence_numbers   jsonb,
    mark               jsonb,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at         timestamptz,
    finished_at        timestamptz,
    is_listed          boolean     NOT NULL DEFAULT false,
    listed_to          text,
    documents_listed   bigint      NOT NULL DEFAULT 0,
    documents_expected bigint,
    -- Chunks are numbered from 0 and taken in that order. One that is given back gets a new number, after all others.
    chunks_next        integer     NOT NULL DEFAULT 0,
    chunks_end         integer     NOT NULL DEFAULT 0,
    chunks_left        integer     NOT NULL DEFAULT 0,
    served_at          timestamptz NOT NULL DEFAULT '-infinity',
    documents_done     bigint      NOT NULL DEFAULT 0,
    indexed            bigint      NOT NULL DEFAULT 0,
    deleted            bigint      NOT NULL DEFAULT 0,
    skipped            bigint      NOT NULL DEFAULT 0,
    dead_lettered      bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

COMMENT ON COLUMN syncer.job.cause IS
    'Of a fan-out: by table, the images of the changed rows that lead to its documents.';
COMMENT ON COLUMN syncer.job.occasion IS 'What made a refresh or a recovery necessary, in words; never what a row contains.';
COMMENT ON COLUMN syncer.job.caused_before IS
    'Whatever caused the job or joined it was committed by a transaction with a smaller id.';
COMMENT ON COLUMN syncer.job.completes_load IS
    'Whether its end means that every document was written once: false if changes may have been missed since.';
COMMENT ON COLUMN syncer.job.sequence_numbers IS
    'The greatest _seq_no of each shard before its first document was written: see `syncer.jobs.listing`.';
COMMENT ON COLUMN syncer.job.mark IS
    'Of a recovery: the position of the index at the last mark; what was written later is written again.';
COMMENT ON COLUMN syncer.job.changed_at IS 'When the oldest change was made that it makes up for, as far as is known.';
COMMENT ON COLUMN syncer.job.is_listed IS
    'Whether all chunks of what it does now exist: those of the ids, or of the orphans.';
COMMENT ON COLUMN syncer.job.listed_to IS 'The last id of the last range that was listed.';
COMMENT ON COLUMN syncer.job.documents_expected IS
    'How many documents it has, as far as the statistics of Postgres tell; null if they do not.';

-- Ids that have yet to be written. A row is deleted in the transaction that records its chunk's progress. The ids are
-- not compressed: that would take as long as listing them.
CREATE TABLE syncer.job_chunk (
    job        bigint  NOT NULL REFERENCES syncer.job ON DELETE CASCADE,
    number     integer NOT NULL,
    id         bigint  NOT NULL GENERATED ALWAYS AS IDENTITY,
    ids        text[]  NOT NULL,
    everywhere boolean NOT NULL DEFAULT false,
    PRIMARY KEY (job, number)
) WITH (fillfactor = 80);

ALTER TABLE syncer.job_chunk ALTER COLUMN ids SET STORAGE EXTERNAL;

COMMENT ON COLUMN syncer.job_chunk.id IS 'The second half of the key of its advisory lock.';
COMMENT ON COLUMN syncer.job_chunk.everywhere IS 'Whether copies of its documents on other shards are deleted, too.';

-- Dead letters --------------------------------------------------------------------------------------------------------

-- Documents that could not be written. A row is deleted once a newer version is written.
CREATE TABLE syncer.dead_letter (
    index_name  text        NOT NULL REFERENCES syncer.document ON DELETE CASCADE,
    id          text        NOT NULL,
    document    text        NOT NULL,
    version     bigint      NOT NULL,
    kind        text        NOT NULL,
    is_id_cut   boolean     NOT NULL DEFAULT false,
    error       text        NOT NULL,
    failed_at   timestamptz NOT NULL DEFAULT now(),
    recorded_in xid8        NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (index_name, id)
);

COMMENT ON COLUMN syncer.dead_letter.kind IS 'The name that Elasticsearch, psycopg or syncer has for the error.';
COMMENT ON COLUMN syncer.dead_letter.is_id_cut IS 'Whether id is the beginning of a longer one, and its digest.';
COMMENT ON COLUMN syncer.dead_letter.recorded_in IS
    'The transaction that recorded it. Its id is greater than that of any change that the document showed.';

-- Daemons -------------------------------------------------------------------------------------------------------------

-- Each daemon reports every second: see `syncer.monitoring.daemons`.
CREATE TABLE syncer.daemon (
    id                 uuid        PRIMARY KEY,
    host               text        NOT NULL,
    process            integer     NOT NULL,
    version            text        NOT NULL,
    started_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    reported_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    components         text[]      NOT NULL,
    leads              boolean     NOT NULL,
    written_per_second float8      NOT NULL,
    troubles           jsonb       NOT NULL
);

COMMENT ON TABLE syncer.daemon IS
    'The daemons that run. A row whose reported_at is older than some seconds is of one that hangs or is gone.';
COMMENT ON COLUMN syncer.daemon.leads IS 'Whether it is the one that reads the outbox.';
COMMENT ON COLUMN syncer.daemon.written_per_second IS
    'Documents that it wrote or deleted, a second, since the report before.';
COMMENT ON COLUMN syncer.daemon.troubles IS
    'What its components are retrying: component, server, kind, seconds since the first failed attempt began, error, hint.';

-- Timeline ------------------------------------------------------------------------------------------------------------

-- What happened in the last days, for `syncer events` and the status page: see `syncer.base.timeline`.
CREATE TABLE syncer.event (
    id      bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL,
    event   text        NOT NULL,
    level   text        NOT NULL,
    message text        NOT NULL,
    host    text        NOT NULL,
    process integer     NOT NULL
);

COMMENT ON COLUMN syncer.event.event IS 'The name of the log event.';

-- Waiting for one's own write -----------------------------------------------------------------------------------------

-- Tells one database, and one history of it, from another: transaction ids are given again after a failover or a
-- restore. Until a daemon has entered an epoch, the start of the server tells. Applications call both functions, so the
-- search_path is pinned.
CREATE FUNCTION syncer.identity(of_start boolean DEFAULT false) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $identity$
    SELECT left(md5(concat_ws(' ', coalesce(CASE WHEN NOT of_start THEN c.name::text END,
                                            extract(epoch FROM pg_postmaster_start_time())::text), d.oid)), 8)
    FROM pg_database AS d LEFT JOIN syncer.cluster_identity AS c
    ON c.database = d.oid AND c.written_in::text::numeric % 4294967296 = c.xmin::text::numeric
    WHERE d.datname = current_database()
$identity$;

CREATE FUNCTION syncer.token() RETURNS text LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $token$
    SELECT pg_current_xact_id()::text || '.' || syncer.identity()
$token$;

COMMENT ON FUNCTION syncer.token IS
    'Names the calling transaction for `syncer wait TOKEN`. Call it before the commit, use the result after.';

-- Restores ------------------------------------------------------------------------------------------------------------

-- Tells that a dump was restored whole. pg_dump fills materialized views last, also in parallel: as long as this one is
-- empty, tables may be half full and triggers missing. See `syncer.base.migrations`.
CREATE MATERIALIZED VIEW syncer.restored AS SELECT true AS is_whole;
