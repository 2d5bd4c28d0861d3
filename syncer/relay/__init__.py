"""From the outbox to Kafka, in the order of commits, by one leader at a time.

Guarantees: every committed change is published at least once. The cursor, a Postgres snapshot up to which everything is
published, is saved only after Kafka has acknowledged every record before it.

    loop    lead; then read a page of changes, publish it, save the cursor
"""
