-- Group roles for the parts of syncer. Each has the privileges of its duty and no others; docs/security.md describes them.
--
-- Run this as the owner of the schema syncer or a superuser: after `syncer migrate`, and again after each later one.
-- It can be repeated, and revokes what an earlier version granted. Then make your login roles members, for example:
--
--     GRANT syncer_relay, syncer_worker TO shop_syncer;    -- syncer run
--     GRANT syncer_operator TO olga;                       -- backfill, index, jobs, dead-letters, verify --repair
--     GRANT syncer_reader TO anna;                         -- status, events, verify, explain, doctor
--
-- and let them read what your documents read:
--
--     GRANT USAGE ON SCHEMA public TO syncer_relay, syncer_documents;
--     GRANT SELECT ON public.users, public.posts, public.comments TO syncer_documents;
--
-- The metric of the oldest transaction sees those of other roles only after this, by a superuser:
--
--     GRANT pg_read_all_stats TO syncer_relay;

BEGIN;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['syncer_documents', 'syncer_relay', 'syncer_worker', 'syncer_operator', 'syncer_reader'] LOOP
        IF to_regrole(name) IS NULL THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA syncer FROM %I', name);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA syncer FROM %I', name);
    END LOOP;
END
$$;

GRANT syncer_documents TO syncer_worker, syncer_operator, syncer_reader;
GRANT USAGE ON SCHEMA syncer TO syncer_relay, syncer_worker, syncer_operator, syncer_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA syncer TO syncer_worker, syncer_operator, syncer_reader;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA syncer TO syncer_relay, syncer_worker, syncer_operator, syncer_reader;

-- syncer.document and syncer.capture hold SQL that other roles run: writing it confers their privileges. So relay and workers
-- write only single columns there, none of which is executed.

-- Every daemon
GRANT SELECT ON
    syncer.capture, syncer.daemon, syncer.dead_letter, syncer.document, syncer.event, syncer.installation, syncer.job, syncer.mark,
    syncer.migration, syncer.outbox, syncer.cursor, syncer.partition, syncer.handled, syncer.term, syncer.verification
    TO syncer_relay;
GRANT UPDATE (files) ON syncer.capture TO syncer_relay, syncer_worker, syncer_operator;
GRANT INSERT ON syncer.outbox TO syncer_relay, syncer_worker, syncer_operator;
GRANT INSERT, DELETE ON syncer.event TO syncer_relay, syncer_worker;
GRANT INSERT, UPDATE, DELETE ON syncer.daemon TO syncer_relay, syncer_worker;
GRANT UPDATE (loaded_at, suspended, suspended_ids, suspended_at, is_stale, stale_since, accepted) ON syncer.document
    TO syncer_relay, syncer_worker;
GRANT INSERT (kind, document, index_name, revision, completes_load, cause, occasion, changed_at, mark), DELETE ON syncer.job
    TO syncer_relay, syncer_worker;
GRANT UPDATE (
    revision, state, is_paused, completes_load, error, cause, occasion, caused_before, changed_at, sequence_numbers,
    started_at, finished_at, served_at, is_listed, listed_to, chunks_next, chunks_end, chunks_left, documents_expected,
    documents_listed, documents_done, indexed, deleted, skipped, dead_lettered
) ON syncer.job TO syncer_relay, syncer_worker;

-- The relay, or without Kafka the daemon that leads: reads no table of an application, and assigns no version
GRANT UPDATE (xid) ON syncer.outbox TO syncer_relay;
GRANT SELECT, TRUNCATE ON
    syncer.outbox_0, syncer.outbox_1, syncer.outbox_2, syncer.outbox_3,
    syncer.outbox_4, syncer.outbox_5, syncer.outbox_6, syncer.outbox_7
    TO syncer_relay;
GRANT INSERT, UPDATE, DELETE ON syncer.cursor TO syncer_relay;
GRANT INSERT, DELETE ON syncer.term TO syncer_relay;
GRANT SELECT, DELETE ON syncer.job_chunk TO syncer_relay;
GRANT UPDATE ON SEQUENCE syncer.outbox_segment TO syncer_relay;

-- Workers and operators: cannot empty the outbox, nor move the relay's cursor
GRANT INSERT, UPDATE, DELETE ON syncer.dead_letter, syncer.job_chunk TO syncer_worker, syncer_operator;
GRANT UPDATE (listings) ON syncer.document TO syncer_worker;
GRANT INSERT, UPDATE ON syncer.partition TO syncer_worker;
GRANT UPDATE ON syncer.installation, syncer.mark, syncer.version_lock TO syncer_worker, syncer_operator;
GRANT INSERT, UPDATE ON syncer.cluster_identity TO syncer_worker, syncer_operator;
GRANT USAGE ON SEQUENCE syncer.version TO syncer_worker, syncer_operator;

-- Operators: activate definitions. Trust them as you trust the owner of the schema.
GRANT INSERT, UPDATE, DELETE ON syncer.document, syncer.revision, syncer.job, syncer.orphan_index TO syncer_operator;
GRANT USAGE ON SEQUENCE syncer.lost TO syncer_operator;

-- Operators and readers: record the result of a verification, and add an event
GRANT INSERT, UPDATE ON syncer.verification TO syncer_operator, syncer_reader;
GRANT INSERT ON syncer.event TO syncer_operator, syncer_reader;

COMMIT;
