-- Where Kafka has taken back what it had acknowledged, and newer records have come, or will: what the workers had
-- committed before is true only so far. See syncer/rewrites.py.
CREATE TABLE syncer.rewrite (
    number     bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    mark       uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    topic      text        NOT NULL,
    partition  integer     NOT NULL,
    begins     bigint      NOT NULL,
    noticed_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON COLUMN syncer.rewrite.mark IS
    'Committed with each offset by who knows of this rewrite: a number might be given twice, if Postgres is set back.';
COMMENT ON COLUMN syncer.rewrite.topic IS 'The id of the topic.';
COMMENT ON COLUMN syncer.rewrite.begins IS
    'No record that was published after this row was committed lies before this offset.';
