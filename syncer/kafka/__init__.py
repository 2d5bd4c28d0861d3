"""The topic of changes: create, produce, consume and inspect it.

Guarantees: a record counts as published only when all in-sync replicas have acknowledged it. Offsets are committed only
by the caller.

    topic     creates and inspects the topic; the consumer group's lag
    producer  publishes; a change that is too large goes without its row; fills the offsets of lost records
    consumer  receives; commits the offsets that it is told; notices, from the assignment on, that records are gone
    records   reads records without joining the group
"""
