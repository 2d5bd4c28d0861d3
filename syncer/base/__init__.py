"""Shared by every package: settings, errors and their policy, Postgres connections, retry, logging, metrics.

Knows nothing of documents, changes or jobs beyond the records in `model`.

    settings                            configuration, and what comes with the package
    errors                              every error that a user may see
    error_policy                        an error, or the status of a refused item → retry, dead-letter, suspend, stop
    retry                               repeat with backoff; log what lasts
    postgres, migrations                sessions, a connection that reopens, and the schema
    lifecycle                           how components stop; `syncer.daemon` starts them, and ends all if one fails
    model                               records that packages exchange
    log, formatting                     what is logged, and how
    timeline                            the events that are kept in Postgres, for seven days
    metrics                             what is measured
"""
