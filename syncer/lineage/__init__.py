"""Derives, from a SELECT, SQL that finds the document ids that a changed row affects.

Guarantee: too many ids are harmless, too few are a bug, so a SELECT that cannot be analysed is refused. Only `catalog`,
`routes` and `fingerprint` query Postgres; the rest is pure.

    catalog       asks Postgres what a query reads; refuses one whose result depends on more than rows, such as now()
    build         derives which columns lead to which documents, as a graph
    graph         that graph: tables read, conditions between them, paths to ``_id``
    scope         which column of which table a name in the SELECT means
    select_parts  the parts of a SELECT that the derivation examines
    routes        a path in that graph as SQL, from changed rows to document ids
    dependencies  the result: tables, columns, routes
    fingerprint   the columns, their types, and the views that a document relies on, as recorded at apply
"""
