"""Compares desired definitions with active ones: plans the difference, previews its cost, and carries it out.

Guarantees: a definition becomes active in one commit, together with the job that loads its index. The alias moves only
to an index that is loaded. Every step may be interrupted and repeated.

    plan      desired against active definitions, and what the triggers of each table watch for all of them
    activate  indices, triggers, active revisions; and the way back
    reindex   each step of a new index beside the current one, up to the move of the alias; `cli.load` runs
              them in their order: load, own settings, verify, wait for pending jobs, move the alias
    preview   what apply would do, with its problems and costs: `trial` writes a sample to a scratch index, `cost` runs
              the queries from changed rows to documents
"""
