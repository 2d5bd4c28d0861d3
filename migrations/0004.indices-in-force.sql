-- A definition in force and the physical index that it is written to are one row. While an index is built anew, and until
-- the one before it is dropped, a document has several rows, which are followed each on its own: see syncer/store.py.

ALTER TABLE syncer.document
    ADD COLUMN index_name text,
    ADD COLUMN write_alias text,
    ADD COLUMN role text NOT NULL DEFAULT 'serving' CHECK (role IN ('serving', 'building', 'standby'));

UPDATE syncer.document AS d
SET index_name = t.index_name, write_alias = t.write_alias
FROM syncer.target AS t WHERE t.document = d.name;

DROP TABLE syncer.target;
DELETE FROM syncer.document WHERE index_name IS NULL;

ALTER TABLE syncer.document
    DROP CONSTRAINT document_pkey,
    ADD PRIMARY KEY (index_name),
    ALTER COLUMN write_alias SET NOT NULL,
    ADD UNIQUE (write_alias),
    ADD UNIQUE (name, generation),
    ADD UNIQUE (name, role) DEFERRABLE INITIALLY DEFERRED;

COMMENT ON COLUMN syncer.document.role IS
    'serving: searches find it; building: it is to serve once it is filled; standby: it served before, for a rollback.';

-- What an index refuses says nothing of another one.
ALTER TABLE syncer.dead_letter ADD COLUMN index_name text;
UPDATE syncer.dead_letter AS l SET index_name = d.index_name FROM syncer.document AS d WHERE d.name = l.document;
DELETE FROM syncer.dead_letter WHERE index_name IS NULL;
ALTER TABLE syncer.dead_letter
    DROP CONSTRAINT dead_letter_pkey,
    ADD PRIMARY KEY (index_name, id),
    ADD FOREIGN KEY (index_name) REFERENCES syncer.document ON DELETE CASCADE;

-- A generation is never used twice, though the row that had it may be gone: who is late names the one that it worked for.
CREATE TABLE syncer.generation (
    document text   PRIMARY KEY,
    last     bigint NOT NULL
);
INSERT INTO syncer.generation SELECT name, generation FROM syncer.document;
