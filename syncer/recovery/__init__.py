"""Recovery after Kafka has lost records, a table was altered, or a command died. For a failover see `syncer.indexing`.

Guarantee: a worker continues past a loss only after the jobs are committed that write again whatever the lost records
may have touched.

    lost_records    compares what Kafka has acknowledged or committed with what it has now; if records are lost, or
                    cannot be read, has every document written again; `kafka.producer` fills the gap
    schema_watch    checks every few seconds that tables and triggers are still as applied: suspends, resumes, refreshes
    orphan_indices  deletes indices that a killed command left behind
"""
