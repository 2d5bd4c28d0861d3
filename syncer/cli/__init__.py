"""The commands: their options, and what they print. Each opens what it needs and calls a package below.

    app       all commands by their names; defines `run`, `migrate`, `demo`; shows errors
    context   what commands have in common: options, settings, connections
    render    lines, tables and progress in a terminal; how a job is shown
    apply     `plan`, `apply`, `detach`
    load      `backfill`, `index …`, `dead-letters …`; the last steps of a new index, in their order
    verify    `verify`, `explain`
    status    `status`, `events`, `wait`

The other modules are named after their commands.
"""
