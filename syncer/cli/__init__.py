"""The commands: their options, and how results are shown.

No logic, except the order of the last steps of a new index, in `follow_jobs`: each command opens what it needs and
calls a package below.

    app          all commands; defines `run`, `migrate`, `demo`
    context      what a command opens: settings, connections, clients
    parameters   options that several commands take, and their limits; asks for confirmation
    render       lines, tables and progress in a terminal
    follow_jobs  follows jobs on the screen, and takes a new index from loaded to current, step by step
    reference    the tables of the reference pages

The other modules are named after their commands, and print what these show: `apply` (also ``syncer plan``), `backfill`
(also ``syncer index …``), `ask` (``doctor``, ``events``, ``wait``), `jobs`, `verify`, `explain`, `dead_letters`,
`status`, `init`, `locks`, `sandbox`.
"""
