"""Drafts select.sql and index.json of a document, for ``syncer init``.

table    a table, what it refers to, and the tables that refer to it → a SELECT and its mapping
mapping  the columns of any SELECT → a mapping, keeping what exists
"""
