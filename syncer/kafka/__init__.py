"""The topic of changes: create, produce, consume and inspect it.

Guarantees: a record counts as published only when all in-sync replicas have acknowledged it. Offsets are committed only
by the caller.

    topic     creates and inspects the topic; the consumer group's lag
    producer  publishes; fills the offsets of lost records with empty ones
    consumer  receives, commits offsets, notices lost records
    records   reads records without joining the group
"""
