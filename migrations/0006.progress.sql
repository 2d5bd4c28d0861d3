-- Progress is in Postgres alone: the cursors that were saved, and what is handled of each partition of the topic. See
-- syncer/capture/progress.py.

CREATE TABLE syncer.cursor (
    id                bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    system_identifier bigint      NOT NULL,
    snapshot          pg_snapshot NOT NULL,
    saved_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at        timestamptz,
    changes           bigint      NOT NULL,
    numbers           jsonb       NOT NULL,
    adopted_in        xid8        NOT NULL
);

COMMENT ON TABLE syncer.cursor IS
    'Everything visible in the snapshot is published, or written if numbers is empty. The newest row is where to go on.';
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

CREATE SEQUENCE syncer.term;

COMMENT ON SEQUENCE syncer.term IS 'The numbers of records begin with the term of their leader, so that none is used twice.';

-- The newest saved cursor up to which everything is handled, and since when the oldest change waits that was read.
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

INSERT INTO syncer.cursor (system_identifier, snapshot, changes, numbers, adopted_in)
SELECT system_identifier, snapshot, 0, '{}', adopted_in FROM syncer.relay_cursor ORDER BY number DESC LIMIT 1;
DROP TABLE syncer.relay_cursor, syncer.topic;

-- Pages of a transaction, however large it is, are read by index.
DROP INDEX syncer.outbox_xid;
CREATE INDEX outbox_xid ON syncer.outbox (xid, id);
