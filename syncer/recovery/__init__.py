"""Recovery after Kafka has lost records, a backlog was given up, a table was altered, or a command died.

For a failover see `syncer.indexing`.

Guarantee: a worker continues past a loss only after the jobs are committed that write again whatever the lost records
may have touched.

    lost_records    has every document written again if Kafka has lost records, or if one cannot be read
    backlog         has every document written again instead of a backlog that takes too much of the disk
    schema_watch    checks every few seconds that tables and triggers are still as applied: suspends, resumes, refreshes
    orphan_indices  deletes indices that a killed command left behind
"""
