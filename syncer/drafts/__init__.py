"""Drafts select.sql and index.json of a document, for ``syncer init``.

catalogue    the tables that there are: columns, keys, references
rules        what a name or a type says: the one table of rules for columns, tables and mappings
naming       what keys and names say: which table is a link, what rows are called, what --with names
draft        a table, and the tables asked for → a SELECT
orm          the SELECT that an ORM prints → one with an _id
value_types  the columns of any SELECT, and the types inside the JSON that it builds, as Postgres knows them
mapping      value types → a mapping, keeping what exists
"""
