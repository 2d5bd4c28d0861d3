-- What syncer keeps in Postgres: the outbox that triggers fill, and its own memory.
-- The schema itself is created by `syncer migrate`, which owns every object below.

-- The outbox: one row for each changed row, written in the application's own transaction.
-- It is cut into segments so that published rows leave by TRUNCATE: a DELETE would leave dead rows
-- behind that a transaction held open for hours keeps from being vacuumed.
CREATE TABLE syncer.outbox (
    segment    bigint      NOT NULL,
    id         bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    xid        xid8        NOT NULL DEFAULT pg_current_xact_id(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    relation   text        NOT NULL,
    operation  "char"      NOT NULL CHECK (operation IN ('I', 'U', 'D', 'T')),
    old        jsonb,
    new        jsonb
) PARTITION BY LIST (segment);

COMMENT ON TABLE syncer.outbox IS
    'Committed changes on their way to Kafka. Read by the relay, by xid, with a snapshot as cursor.';

CREATE INDEX outbox_xid ON syncer.outbox (xid);

CREATE TABLE syncer.outbox_0 PARTITION OF syncer.outbox FOR VALUES IN (0);
CREATE TABLE syncer.outbox_1 PARTITION OF syncer.outbox FOR VALUES IN (1);
CREATE TABLE syncer.outbox_2 PARTITION OF syncer.outbox FOR VALUES IN (2);
CREATE TABLE syncer.outbox_3 PARTITION OF syncer.outbox FOR VALUES IN (3);
CREATE TABLE syncer.outbox_4 PARTITION OF syncer.outbox FOR VALUES IN (4);
CREATE TABLE syncer.outbox_5 PARTITION OF syncer.outbox FOR VALUES IN (5);
CREATE TABLE syncer.outbox_6 PARTITION OF syncer.outbox FOR VALUES IN (6);
CREATE TABLE syncer.outbox_7 PARTITION OF syncer.outbox FOR VALUES IN (7);

-- Which segment is written now. A sequence, because its value is seen at once by every transaction,
-- whatever its isolation level; a transaction that saw the value before may still write the old
-- segment, which is why every segment is read and none is emptied without its lock.
CREATE SEQUENCE syncer.outbox_segment MINVALUE 0 MAXVALUE 7 START 0;

-- How each captured table is read by its triggers.
CREATE TABLE syncer.capture (
    relation         text   PRIMARY KEY,
    key              text[] NOT NULL,
    watched          text[] NOT NULL,
    routing          text[] NOT NULL,
    aggregate        text   NOT NULL,
    aggregate_column text NOT NULL
);

COMMENT ON COLUMN syncer.capture.aggregate IS
    'The table whose row a change belongs to; with the value of aggregate_column it is the Kafka key.';

-- The relay's cursor: everything visible in the snapshot has been acknowledged by Kafka.
CREATE TABLE syncer.relay_cursor (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    system_identifier bigint      NOT NULL,
    snapshot          pg_snapshot NOT NULL,
    saved_at          timestamptz NOT NULL DEFAULT now()
);

-- Which incarnation of the database the epoch belongs to.
CREATE TABLE syncer.incarnation (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    installation      uuid   NOT NULL DEFAULT gen_random_uuid(),
    system_identifier bigint NOT NULL DEFAULT 0,
    timeline          bigint NOT NULL DEFAULT 0,
    sequence          bigint NOT NULL DEFAULT 0,
    epoch             bigint NOT NULL DEFAULT 0 CHECK (epoch < 1 << 20)
);

INSERT INTO syncer.incarnation DEFAULT VALUES;

-- Versions are drawn here: epoch << 43 | nextval.
CREATE SEQUENCE syncer.version MAXVALUE 8796093022207;

-- Documents as they were applied. A generation is one applied state of a definition.
CREATE TABLE syncer.document (
    name       text        PRIMARY KEY,
    generation bigint      NOT NULL,
    definition jsonb       NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    filled_at  timestamptz
);

-- Where a document is written: every target gets every write.
CREATE TABLE syncer.target (
    document           text        NOT NULL REFERENCES syncer.document ON DELETE CASCADE,
    index_name         text        NOT NULL UNIQUE,
    write_alias        text        NOT NULL UNIQUE,
    mapping_generation bigint      NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (document, index_name)
);

-- Documents that could not be written; a row goes away once a newer version has been written.
CREATE TABLE syncer.dead_letter (
    document  text        NOT NULL,
    id        text        NOT NULL,
    version   bigint      NOT NULL,
    error     text        NOT NULL,
    parked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (document, id)
);
