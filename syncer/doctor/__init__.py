"""`syncer doctor`: every setting, privilege and condition that a promise rests on, looked at, with the mend.

    symptom      what is not well, and its mend          patient    the servers, and what is known of them
    finding      what a check is, and what came of it
    examination  all checks, one after the other         page       the same for a person
    server_settings, sessions     Postgres: how it is set up, and what goes on in it
    schema_checks, privileges     … what syncer keeps there, and what it may do
    documents, versions           … what is in force, and in which order it is written
    standby                       … the replica that documents are read on
    topic_checks, readers         Kafka
    cluster, indices_checks, templates   Elasticsearch
    forgotten                     … what it holds that Postgres knows nothing of
    daemon                        syncer itself

To add a check is to write a function with `finding.check` above it, and to name it in the `CHECKS` of its module.
"""
