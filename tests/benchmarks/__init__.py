"""How fast syncer is, beside references that are measured in the same run.

A benchmark is one function: it gets a `Bench`, and yields figures. ``docs/benchmarks.md`` says what each measures.

    world         the servers and options of a run, its blog of N posts with a daemon, and the peers
    contest       syncer and its references in turns, so that a ratio is taken within one pass; processor time, memory
    report        figures beside their goals, tables, and the kept history
    edits         single edits at an even pace, and when each is seen       writes     when an index was last written
    references    the bare loop, the ceiling, the polling loop

    bulk_work     backfill, rebuild, verify, drain, fan-out, growth         one_edit      statements, functions
    single_edits  latency, load, isolation, recovery                        application   what writers pay
    staleness     wrong for good, after failures                     random_writers  an application
    locks         locks made of documents                                   pgsync, flink (flink_setup)  the peers
"""
