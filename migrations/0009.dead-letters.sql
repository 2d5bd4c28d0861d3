-- What is at fault in a document that could not be written: see syncer/fault.py. The field's name and the JSON type of its
-- value, so that 200,000 dead letters are a few kinds.
ALTER TABLE syncer.dead_letter
    ADD COLUMN kind       text    NOT NULL DEFAULT 'unknown',
    ADD COLUMN field      text,
    ADD COLUMN value_type text,
    ADD COLUMN is_id_cut  boolean NOT NULL DEFAULT false;

UPDATE syncer.dead_letter
SET kind = coalesce(substring(error FROM '^([a-z_]+): '), 'unknown'), is_id_cut = id ~ '… \([0-9a-f]{64}\)$';

ALTER TABLE syncer.dead_letter ALTER COLUMN kind DROP DEFAULT;

COMMENT ON COLUMN syncer.dead_letter.kind IS 'The name that Elasticsearch, or psycopg, has for the error.';
COMMENT ON COLUMN syncer.dead_letter.field IS 'The field that is at fault, or the column or constraint; null if that is not said.';
COMMENT ON COLUMN syncer.dead_letter.value_type IS 'What JSON, or Postgres, calls the type of the value that the field has.';
COMMENT ON COLUMN syncer.dead_letter.is_id_cut IS 'Whether the id is the beginning of a longer one, and its digest.';

-- Records of the topic that are no changes, as far as this version can read: see syncer/unreadable.py.
CREATE TABLE syncer.unreadable_record (
    id             bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    topic          text        NOT NULL,
    partition      integer     NOT NULL,
    record_offset  bigint      NOT NULL,
    key            bytea,
    value          bytea       NOT NULL,
    value_bytes    integer     NOT NULL,
    digest         bytea       NOT NULL,
    error          text        NOT NULL,
    received_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (topic, partition, record_offset, digest)
);

COMMENT ON COLUMN syncer.unreadable_record.value IS 'The value, or its beginning, if value_bytes is more than it has.';

-- How many there are of each topic: those beyond a bound are only counted.
CREATE TABLE syncer.unreadable_topic (
    topic         text        PRIMARY KEY,
    kept          bigint      NOT NULL,
    only_counted  bigint      NOT NULL DEFAULT 0,
    last_at       timestamptz NOT NULL
);

-- Which of these documents the SELECT raises for, and what it says: asked in groups, then one by one, on the server, in the
-- caller's snapshot. Those that are not reached in time come back without a state.
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
        -- Whatever the time is, something is found out each time.
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
