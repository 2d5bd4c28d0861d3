-- Tells that a dump was restored whole. pg_dump fills materialized views after all else, also if it restores in parallel:
-- as long as this one is empty, tables may be half full, and triggers missing. See syncer/schema.py.
CREATE MATERIALIZED VIEW syncer.restored AS SELECT true AS is_whole;
