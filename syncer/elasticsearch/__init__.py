"""Elasticsearch: bulk requests, indices and aliases, and reading documents back.

Guarantees: a write names an alias and requires it, so that a late write never re-creates a dropped index. Errors are
those of the client; `syncer.base.error_policy` says what they mean.

    client   connects, and checks that the server is supported
    bulk     bulk requests and their answers: a version conflict (409) counts as done. Halves a request that is too
             large, or refused for one of its documents. To a write with routing, adds the deletes for all other
             shards. Keeps the greatest epoch, which a restore of Postgres cannot set back
    indices  create, configure, swap and delete indices and aliases, scratch indices too
    reader   read documents back, by id or all of them. Computes the shard of a routing value
"""
