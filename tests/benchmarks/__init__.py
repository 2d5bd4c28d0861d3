"""How fast syncer is, beside references that are measured in the same run.

A benchmark is one function. It gets a `Bench`, lets contestants do the same work in turns, and yields figures of their
runs. All runs are rows of one table, which is shown and kept. ``docs/benchmarks.md`` says what each measures.

    world         the servers of a run, its blog of N posts with a daemon, and how it is changed
    schemas/      data, and for `staleness` how writers and peers see them
    report        runs, figures beside their goals, and the kept history
    gauges        processor time, memory, and when an index was written
    edits         single edits at an even pace, and when each is seen
    references    the bare loop, the polling loop

    bulk_work     fill, backfill, refresh, rebuild, verify, sources, drain, fan-out, growth
    single_edits  latency, load, isolation, application
    one_edit      statements, functions                    locks         locks made of documents
    shapes        many tables, many paths
    peers         pgsync, flink (flink_jars)               staleness     wrong for good (random_writers)
"""
