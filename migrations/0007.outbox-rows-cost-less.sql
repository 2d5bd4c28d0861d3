-- An outbox row is cheaper to write: a CHECK constraint is read from the catalogue's text again for each statement.

-- Writers hold this table. So its lock is asked for briefly, and again, as syncer/capture.py does: nobody waits for
-- long behind whoever waits here for an open transaction.
DO $$
DECLARE
    deadline timestamptz := clock_timestamp() + interval '60 s';
BEGIN
    LOOP
        BEGIN
            SET LOCAL lock_timeout = '200ms';
            ALTER TABLE syncer.outbox DROP CONSTRAINT outbox_operation_check;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION 'syncer.outbox has been written by a transaction that is still open'
                    USING HINT = 'Nothing was changed. Wait for that transaction to end, or end it, and run this again.';
            END IF;
            PERFORM pg_sleep(0.5);
        END;
    END LOOP;
    SET LOCAL lock_timeout = 0;
END
$$;
