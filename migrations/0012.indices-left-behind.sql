-- Indices that were made and are not in force yet, or no longer, and are yet to be dropped: see syncer/leftover.py.
CREATE TABLE syncer.leftover (
    index_name  text PRIMARY KEY,
    write_alias text NOT NULL
);

COMMENT ON TABLE syncer.leftover IS
    'Indices in Elasticsearch that no definition writes: whoever made them, or was to drop them, may have died.';
