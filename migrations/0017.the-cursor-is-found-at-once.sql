-- The cursor is saved many times a second. Under one key whoever looks for it passes every version of its row that a
-- transaction which stays open keeps from being vacuumed. So the key grows now and then, and the newest is looked for.
ALTER TABLE syncer.relay_cursor DROP COLUMN only_row, ADD COLUMN stretch bigint PRIMARY KEY DEFAULT 0;

COMMENT ON COLUMN syncer.relay_cursor.stretch IS
    'Grows now and then, so that the newest version is found without passing the others: see syncer/outbox.py.';

-- Which record was the last of each partition, so that whoever leads next knows whether another one is in its place.
ALTER TABLE syncer.relay_cursor ADD COLUMN lasts jsonb NOT NULL DEFAULT '{}';

COMMENT ON COLUMN syncer.relay_cursor.lasts IS
    'By partition, the outbox id of the last record that Kafka has acknowledged: the one before the end.';
