-- A publication of all tables lets no row be updated of a table without a replica identity. The rows of the outbox are
-- updated where a dump is restored: see `syncer.capture.progress.adopt`.
DO $$
BEGIN
    FOR number IN 0..7 LOOP
        EXECUTE format('ALTER TABLE syncer.outbox_%s REPLICA IDENTITY FULL', number);
    END LOOP;
END;
$$;
