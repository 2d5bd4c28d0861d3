"""Durable bulk work on documents: fan-outs, loads, backfills. A queue in Postgres, in chunks of ids.

Guarantees: one job worker at a time holds a chunk, and a chunk is counted once. A job ends only after each of its
documents was built in a snapshot that is newer than the job, and written or dead-lettered.

    model    what a job is, and its states
    queue    creates jobs, or lets a new cause join one that has not begun; changes and ends them
    listing  which ids a job writes, as chunks; which open jobs may yet write a document
    chunks   locked by job workers, and deleted once they are written
"""
