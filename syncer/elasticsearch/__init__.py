"""Elasticsearch: bulk requests, indices and aliases, and reading documents back.

Errors are those of the client; `syncer.base.error_policy` says what they mean.

    client        connects, and checks that the server is supported
    bulk          bulk requests and their answers; the fence between epochs
    record        epochs, marks and deleted ids, which a restore of Postgres does not take back
    indices       create, configure, swap and delete indices and aliases, scratch indices too
    shortcomings  why an index does not keep or show every document as it was written
    reader        read documents back, by id or all of them. Computes the shard of a routing value
"""
