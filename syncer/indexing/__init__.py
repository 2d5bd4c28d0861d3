"""Document ids → documents built in one snapshot → Elasticsearch. Every document of an index is written here.

The version rule: a version is assigned together with a snapshot, serialised against every other writer; the documents
are read in that snapshot and written whole with that version. So a higher version comes from a newer snapshot.

    pool              a few writer threads; cuts what is submitted into slices, one request each
    writer            one slice of documents: build, send, settle
    compose           build: reads the documents of a slice, with a version, in one snapshot
    version           the SQL that assigns a version together with a snapshot; notes of when versions were assigned
    failover          notices a restore or failover, starts a new epoch (the high bits of every version), and has
                      everything written again
    flow_control      how many documents a request has, and how many requests are in flight
    dead_letters      documents that could not be written
"""
