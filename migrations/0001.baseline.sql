-- Everything that syncer keeps in Postgres. `syncer migrate` creates the schema and owns every object in it.

-- Capture -------------------------------------------------------------------------------------------------------------

-- The outbox: one row per changed row, written by a trigger in the application's own transaction. The relay reads it by
-- xid, with a snapshot as cursor. It is partitioned into segments so that published rows leave by TRUNCATE: a DELETE
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
    new        jsonb
) PARTITION BY LIST (segment);

COMMENT ON COLUMN syncer.outbox.operation IS 'I, U, D, or T for TRUNCATE.';
COMMENT ON COLUMN syncer.outbox.old IS
    'By name, the text of each column that leads to documents, before the change; null if the images are too large.';

CREATE INDEX outbox_xid ON syncer.outbox (xid);

CREATE TABLE syncer.outbox_0 PARTITION OF syncer.outbox FOR VALUES IN (0);
CREATE TABLE syncer.outbox_1 PARTITION OF syncer.outbox FOR VALUES IN (1);
CREATE TABLE syncer.outbox_2 PARTITION OF syncer.outbox FOR VALUES IN (2);
CREATE TABLE syncer.outbox_3 PARTITION OF syncer.outbox FOR VALUES IN (3);
CREATE TABLE syncer.outbox_4 PARTITION OF syncer.outbox FOR VALUES IN (4);
CREATE TABLE syncer.outbox_5 PARTITION OF syncer.outbox FOR VALUES IN (5);
CREATE TABLE syncer.outbox_6 PARTITION OF syncer.outbox FOR VALUES IN (6);
CREATE TABLE syncer.outbox_7 PARTITION OF syncer.outbox FOR VALUES IN (7);

-- The segment that is written now. A sequence, because every transaction sees its value at once, whatever its isolation
-- level. A transaction that saw the previous value may still write the previous segment, so all segments are read, and
-- none is emptied without its lock.
CREATE SEQUENCE syncer.outbox_segment MINVALUE 0 MAXVALUE 7 START 0;

-- How the triggers read each captured table.
CREATE TABLE syncer.capture (
    relation         text   PRIMARY KEY,
    key              text[] NOT NULL,
    watched          text[] NOT NULL,
    routing          text[] NOT NULL,
    aggregate        text   NOT NULL,
    aggregate_column text   NOT NULL,
    files            text[]
);

COMMENT ON COLUMN syncer.capture.aggregate IS
    'The table whose row a change belongs to. Its name and the value of aggregate_column are the Kafka key.';
COMMENT ON COLUMN syncer.capture.files IS
    'The files of the table and its partitions when all documents were last known to show their rows.';

-- The type of a column that was dropped or renamed since its trigger was created: see syncer/capture/triggers.py.
CREATE TYPE syncer.gone AS ENUM ();

-- A cast to this type would make the overload below ambiguous.
REVOKE USAGE ON TYPE syncer.gone FROM PUBLIC;

CREATE FUNCTION syncer.is_gone(syncer.gone) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
CREATE FUNCTION syncer.is_gone(anyelement) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';

COMMENT ON FUNCTION syncer.is_gone(anyelement) IS
    'Postgres chooses the overload, and folds the answer, when it plans the statement: the call costs nothing.';

-- The text of a value of any type. The triggers call it only for types that may print more than they store. It uses the
-- type's output function, never a cast, which a user may have defined. The settings are those that the text of some
-- types depends on, because another session reads the text back. The subtransaction writes nothing and gets no xid.
CREATE FUNCTION syncer.text_of(value anyelement, characters_max integer) RETURNS text
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
SET DateStyle = 'ISO' SET IntervalStyle = 'iso_8601' SET extra_float_digits = 1 SET bytea_output = 'hex'
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

-- Relay ---------------------------------------------------------------------------------------------------------------

-- Kafka has acknowledged everything that is visible in the snapshot. The cursor is saved many times a second. Under one
-- key a reader would pass every version of the row that a long transaction keeps from being vacuumed; so the key grows
-- now and then, and the newest row is read.
CREATE TABLE syncer.relay_cursor (
    number            bigint      PRIMARY KEY DEFAULT 0,
    system_identifier bigint      NOT NULL,
    snapshot          pg_snapshot NOT NULL,
    saved_at          timestamptz NOT NULL DEFAULT now(),
    topic             text,
    ends              jsonb       NOT NULL DEFAULT '{}',
    adopted_in        xid8        NOT NULL DEFAULT '0'
);

COMMENT ON COLUMN syncer.relay_cursor.topic IS 'The id of the topic that ends describes.';
COMMENT ON COLUMN syncer.relay_cursor.ends IS
    'By partition, the offset after the last acknowledged record.';
COMMENT ON COLUMN syncer.relay_cursor.adopted_in IS
    'The transaction that took over every row of the outbox because no cursor could be trusted; 0 if none did.';

-- The topic that the records are in, so that a topic deleted and created again is noticed.
CREATE TABLE syncer.topic (
    only_row boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    name     text        NOT NULL,
    id       text        NOT NULL,
    known_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON COLUMN syncer.topic.id IS 'Kafka gives each topic an id of its own when it is created.';

-- Versions ------------------------------------------------------------------------------------------------------------

-- A version is epoch << 43 | nextval.
CREATE SEQUENCE syncer.version MAXVALUE 8796093022207;

-- The identity of the database that the epoch belongs to.
CREATE TABLE syncer.cluster_identity (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    installation      uuid    NOT NULL DEFAULT gen_random_uuid(),
    system_identifier bigint  NOT NULL DEFAULT 0,
    timeline          bigint  NOT NULL DEFAULT 0,
    sequence          bigint  NOT NULL DEFAULT 0,
    epoch             bigint  NOT NULL DEFAULT 0 CHECK (epoch < 1 << 20)
);

INSERT INTO syncer.cluster_identity DEFAULT VALUES;

-- Serialises the assignment of versions: a writer locks it while it takes a version and the snapshot that goes with it.
CREATE TABLE syncer.version_lock ();

-- The last version that was noted in each epoch: see syncer/indexing/version_log.py.
CREATE TABLE syncer.version_time (
    version         bigint      PRIMARY KEY,
    assigned_before timestamptz NOT NULL
);

COMMENT ON COLUMN syncer.version_time.assigned_before IS
    'This version, and every smaller one of its epoch, was assigned before.';

-- Definitions ---------------------------------------------------------------------------------------------------------

-- A definition as it was applied, and the physical index that it is written to. A definition has several rows while an
-- index is rebuilt, and until the previous one is dropped; each is followed on its own: see syncer/documents/registry.py.
CREATE TABLE syncer.document (
    index_name     text        PRIMARY KEY,
    name           text        NOT NULL,
    revision       bigint      NOT NULL,
    role           text        NOT NULL DEFAULT 'current' CHECK (role IN ('current', 'building', 'previous')),
    write_alias    text        NOT NULL UNIQUE,
    definition     jsonb       NOT NULL,
    applied_at     timestamptz NOT NULL DEFAULT now(),
    loaded_at      timestamptz,
    suspended      text,
    suspended_by   text        CHECK (suspended_by IN ('schema', 'unavailable')),
    stale_since    timestamptz DEFAULT now(),
    listings       bigint      NOT NULL DEFAULT 0,
    UNIQUE (name, revision),
    UNIQUE (name, role) DEFERRABLE INITIALLY DEFERRED
);

COMMENT ON COLUMN syncer.document.role IS
    'current: searches find it. building: they will, once it is loaded. previous: they did, and it is kept for a rollback.';
COMMENT ON COLUMN syncer.document.suspended IS 'What happened and what to do; null if the definition is followed.';
COMMENT ON COLUMN syncer.document.suspended_by IS
    'The fault that it is suspended for; it is resumed once that is over. Null if only an apply resumes it.';
COMMENT ON COLUMN syncer.document.stale_since IS
    'Since when its index may lack changes: it was suspended, or activated, or changes were lost. Null once it is loaded.';
COMMENT ON COLUMN syncer.document.listings IS
    'How often a job began to list all documents: a writer whose read is older than the last time writes again.';

-- The last revision of each definition. None is used twice, though its row may be gone: a late worker names its own.
CREATE TABLE syncer.revision (
    document text   PRIMARY KEY,
    last     bigint NOT NULL
);

-- Indices that were created and are not active yet, or no longer, and must be dropped: see
-- syncer/recovery/orphan_indices.py.
CREATE TABLE syncer.orphan_index (
    index_name  text PRIMARY KEY,
    write_alias text NOT NULL
);

-- What the last comparison of each index with its SELECT found: see syncer/verify/last_result.py.
CREATE TABLE syncer.verification (
    index_name  text        PRIMARY KEY REFERENCES syncer.document ON DELETE CASCADE,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    documents   bigint      NOT NULL,
    drifted     bigint      NOT NULL,
    repaired    bigint      NOT NULL,
    is_complete boolean     NOT NULL
);

COMMENT ON COLUMN syncer.verification.drifted IS 'How many documents were left different from their SELECT.';
COMMENT ON COLUMN syncer.verification.is_complete IS 'Whether all were counted: it stops when there are too many.';

-- Jobs ----------------------------------------------------------------------------------------------------------------

-- Durable work on many documents, done by any daemon: see syncer/jobs/queue.py. A transaction that locks several rows
-- locks them in this order: document, job, chunk.
CREATE TABLE syncer.job (
    id               bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    kind             text        NOT NULL,
    document         text        NOT NULL,
    -- Deferred, so that reading the ids of a new job does not block an apply.
    index_name       text        NOT NULL REFERENCES syncer.document ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    revision         bigint      NOT NULL,
    state            text        NOT NULL DEFAULT 'new',
    is_paused        boolean     NOT NULL DEFAULT false,
    condition        text,
    cause            jsonb,
    caused_before    xid8        NOT NULL DEFAULT pg_snapshot_xmax(pg_current_snapshot()),
    rate             float8      CHECK (rate > 0 AND rate < 'infinity'),
    completes_load   boolean     NOT NULL,
    error            text,
    sequence_numbers jsonb,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    finished_at      timestamptz,
    -- Chunks are numbered from 0 and taken in that order. One that is given back gets a new number, after all others.
    chunks_next      integer     NOT NULL DEFAULT 0,
    chunks_end       integer     NOT NULL DEFAULT 0,
    chunks_left      integer     NOT NULL DEFAULT 0,
    served_at        timestamptz NOT NULL DEFAULT '-infinity',
    next_at          timestamptz NOT NULL DEFAULT '-infinity',
    documents_total  bigint,
    documents_done   bigint      NOT NULL DEFAULT 0,
    indexed          bigint      NOT NULL DEFAULT 0,
    deleted          bigint      NOT NULL DEFAULT 0,
    skipped          bigint      NOT NULL DEFAULT 0,
    dead_lettered    bigint      NOT NULL DEFAULT 0,
    compose_seconds  float8      NOT NULL DEFAULT 0,
    index_seconds    float8      NOT NULL DEFAULT 0,
    -- Its speed: what was done, and when, at the start of the current few seconds; the rate of the few before.
    measured_at      timestamptz,
    measured_done    bigint      NOT NULL DEFAULT 0,
    measured_rate    float8
) WITH (fillfactor = 50);

COMMENT ON COLUMN syncer.job.cause IS
    'Of a fan-out: by table, the images of the changed rows that lead to its documents.';
COMMENT ON COLUMN syncer.job.caused_before IS
    'Whatever caused the job or joined it was committed by a transaction with a smaller id.';
COMMENT ON COLUMN syncer.job.changed_at IS 'When the oldest change was made that it makes good, as far as is known.';
COMMENT ON COLUMN syncer.job.completes_load IS
    'Whether its end means that every document was written once: false if changes may have been missed since.';
COMMENT ON COLUMN syncer.job.sequence_numbers IS
    'The greatest _seq_no of each shard before its first document was written: see syncer/jobs/listing.py.';

-- Ids that have yet to be written. A row is deleted in the transaction that records its chunk's progress. The ids are
-- not compressed: that would take as long as listing them.
CREATE TABLE syncer.job_chunk (
    job        bigint  NOT NULL REFERENCES syncer.job ON DELETE CASCADE,
    number     integer NOT NULL,
    ids        text[]  NOT NULL,
    everywhere boolean NOT NULL DEFAULT false,
    taken_by   integer,
    taken_at   timestamptz,
    PRIMARY KEY (job, number)
) WITH (fillfactor = 80);

ALTER TABLE syncer.job_chunk ALTER COLUMN ids SET STORAGE EXTERNAL;

-- Numbers a job worker. It is alive as long as its session holds the advisory lock on its number.
CREATE SEQUENCE syncer.job_worker AS integer CYCLE;

-- Dead letters --------------------------------------------------------------------------------------------------------

-- Documents that could not be written. A row is deleted once a newer version is written.
CREATE TABLE syncer.dead_letter (
    index_name  text        NOT NULL REFERENCES syncer.document ON DELETE CASCADE,
    id          text        NOT NULL,
    document    text        NOT NULL,
    version     bigint      NOT NULL,
    kind        text        NOT NULL,
    field       text,
    value_type  text,
    is_id_cut   boolean     NOT NULL DEFAULT false,
    error       text        NOT NULL,
    failed_at   timestamptz NOT NULL DEFAULT now(),
    recorded_in xid8        NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (index_name, id)
);

COMMENT ON COLUMN syncer.dead_letter.kind IS 'The name that Elasticsearch or psycopg has for the error.';
COMMENT ON COLUMN syncer.dead_letter.field IS 'The field, column or constraint at fault; null if that is not known.';
COMMENT ON COLUMN syncer.dead_letter.value_type IS 'The JSON or Postgres type of the value at fault.';
COMMENT ON COLUMN syncer.dead_letter.is_id_cut IS 'Whether id is the beginning of a longer one, and its digest.';
COMMENT ON COLUMN syncer.dead_letter.recorded_in IS
    'The transaction that recorded it. Its id is greater than that of any change that the document showed.';

-- Finds those of some documents for which the SELECT raises, and what it says: in groups first, then one by one, on the
-- server, in the caller's snapshot. Documents that were not tried in time come back without a state.
CREATE FUNCTION syncer.faults(
    query text, ids text[], seconds float8,
    OUT id text, OUT state text, OUT message text, OUT column_name text, OUT constraint_name text, OUT type_name text
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    until        constant timestamptz := clock_timestamp() + make_interval(secs => seconds);
    size         constant integer := ceil(sqrt(cardinality(ids)));
    first        integer := 1;
    is_begun     boolean := false;
    is_at_fault  boolean;
BEGIN
    WHILE first <= cardinality(ids) LOOP
        is_at_fault := true;
        -- At least one is tried, however little time there is.
        IF NOT is_begun OR clock_timestamp() < until THEN
            BEGIN
                EXECUTE query USING ids[first : first + size - 1];
                is_begun := true;
                is_at_fault := false;
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
        END IF;
        IF is_at_fault THEN
            FOREACH id IN ARRAY ids[first : first + size - 1] LOOP
                state := NULL;
                IF NOT is_begun OR clock_timestamp() < until THEN
                    is_begun := true;
                    BEGIN
                        EXECUTE query USING ARRAY[id];
                        CONTINUE;
                    EXCEPTION WHEN OTHERS THEN
                        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                            column_name = COLUMN_NAME, constraint_name = CONSTRAINT_NAME, type_name = PG_DATATYPE_NAME;
                    END;
                END IF;
                RETURN NEXT;
            END LOOP;
        END IF;
        first := first + size;
    END LOOP;
END
$$;

-- Timeline ------------------------------------------------------------------------------------------------------------

-- What happened in the last days, for `syncer events` and the status page: see syncer/base/timeline.py.
CREATE TABLE syncer.event (
    id      bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL,
    event   text        NOT NULL,
    level   text        NOT NULL,
    message text        NOT NULL,
    host    text        NOT NULL,
    process integer     NOT NULL
);

COMMENT ON COLUMN syncer.event.event IS 'The log event: see docs/events.md.';

-- Waiting for one's own write -----------------------------------------------------------------------------------------

-- Tells one database, and one timeline of it, from another: transaction ids are given again after a failover or a
-- restore. On a primary only. Applications call both functions, so the search_path is pinned.
CREATE FUNCTION syncer.identity() RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $identity$
    SELECT left(md5(concat_ws(' ', c.system_identifier, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8),
                              d.oid, 'syncer.version'::regclass::oid)), 8)
    FROM pg_control_system() AS c, pg_database AS d
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
-- empty, tables may be half full and triggers missing. See syncer/base/migrations.py.
CREATE MATERIALIZED VIEW syncer.restored AS SELECT true AS is_whole;
