"""Definitions of documents: reading them, which are active, what they rely on, and which documents a change affects.

A definition is a folder with a SELECT and a mapping; a document is one row of that SELECT, as kept in Elasticsearch.

Guarantees: a definition is read and checked in the same snapshot as the documents that it builds. A definition that
cannot continue is suspended alone.

    definition  reads the folder of a definition and checks it
    analyze     at apply: analyses a SELECT through `syncer.lineage`, and tries the result
    registry    the active definitions, in Postgres
    affected    at run time: changes → document ids, or a fan-out if they are too many, by the SQL derived then
    snapshot    opens a snapshot; refuses it if tables are no longer as they were at apply
    queries     the SELECT: documents, counts, samples; walks it range by range
    suspend     stops following a definition that cannot continue, or whose table stays locked
"""
