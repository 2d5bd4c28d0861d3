"""Compares desired definitions with active ones: plans the difference, previews its cost, and carries it out.

Guarantees: a definition becomes active in one commit, together with the job that loads its index. The alias moves only
to an index that is loaded. Every step may be interrupted and repeated.

    plan           desired against active definitions
    activate       indices, triggers, active revisions
    reindex        a new index beside the current one; the alias moves
    scratch_index  tries a mapping on sample documents
    preview        what a plan costs and what may go wrong: `preview.forecast`, `preview.cost`, `preview.problems`
    scaffold       drafts a definition for `syncer init`: `scaffold.document`, `scaffold.field`
    grants         the privileges of each database role: who may publish, write, watch
"""
