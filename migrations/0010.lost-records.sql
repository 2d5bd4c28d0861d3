-- Which topic the records are in, and how far: so that what Kafka has lost is noticed. See syncer/loss.py.
CREATE TABLE syncer.topic (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    name     text        NOT NULL,
    id       text        NOT NULL,
    known_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON COLUMN syncer.topic.id IS 'As Kafka gave it when the topic was made: another topic of that name has another id.';

ALTER TABLE syncer.relay_cursor ADD COLUMN topic text, ADD COLUMN ends jsonb NOT NULL DEFAULT '{}';

COMMENT ON COLUMN syncer.relay_cursor.topic IS 'The id of the topic that the ends are of.';
COMMENT ON COLUMN syncer.relay_cursor.ends IS
    'By partition, the offset behind the last record that Kafka has acknowledged: it never goes back, unless records are lost.';
