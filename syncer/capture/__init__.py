"""Triggers that write one outbox row per changed row, in the application's own transaction; and its reader.

Guarantees: a trigger never makes a write fail. An UPDATE that changes no column that a document reads writes nothing.

    triggers    the SQL of the trigger functions: which changed rows are worth an outbox row, and what it shows
    install     creates, checks and removes them; which tables can be captured; notices rewritten tables, and partitions
                that come or go with their rows: no trigger sees them
    outbox      reads what a cursor has not seen yet; removes what it has
    reader      the one process that leads reads the outbox, page by page, and saves the cursor
    progress    what was read, and what of that is handled; tokens, which name a transaction to wait for
"""
