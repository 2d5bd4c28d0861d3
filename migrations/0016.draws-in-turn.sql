-- Versions are drawn in turn: see syncer/version.py. Whoever draws locks this table for as long as that takes.
CREATE TABLE syncer.turn ();

COMMENT ON TABLE syncer.turn IS
    'Locked for a moment by whoever draws a version and takes the snapshot that goes with it.';
