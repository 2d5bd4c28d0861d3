"""Derives, from a SELECT, SQL that finds the document ids that a changed row affects.

Guarantee: too many ids are harmless, too few are a bug, so a SELECT that cannot be analysed is refused. Only `catalog`,
`steady`, `routes`, `fingerprint` and `unordered` query Postgres; the rest is pure.

An example that runs through the modules, in the order of the derivation:

    SELECT p.id AS _id, u.name AS author FROM posts AS p LEFT JOIN users AS u ON u.id = p.user_id

    catalog      asks Postgres what the query reads: posts.id, posts.user_id, users.id and users.name
    steady       refuses a query whose result depends on more than rows, such as now()
    parser       parses the query as Postgres deparses it, with every name qualified
    scope        what a name means: p is a reading of posts, node 0, and u one of users, node 1. So u.id is n1.id.
                 What is known of such an expression: its node, its type, whether it is strict
    build        which equalities must hold: a user matters only with a post of which n1.id = n0.user_id. That is an
                 edge from 1 to 0, and not back: a post without a user is a document, too
    graph        nodes and edges, and in them the path from a changed row to ``_id``, for a user: 1 → 0
    routes       that path as SQL: SELECT n1.id::text AS _id
                 FROM (SELECT id FROM jsonb_to_recordset($1::jsonb) AS changed (id bigint)) AS n0
                 JOIN public.posts AS n1 ON n0.id = n1.user_id. For a post no query is needed: its column id is the id

    fingerprint   the columns, their types, and the views that a document relies on, as recorded at apply
    unordered     fields made by an aggregate without ORDER BY, whose elements may come in any order
"""
