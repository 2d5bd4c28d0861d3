"""Drafts a document's folder for `syncer init`, from a table or a SELECT.

draft    the files: select.sql, index.json, document.yaml; never over existing files
table    a table, what it refers to, and the tables that refer to it → a SELECT and its mapping
mapping  the columns of any SELECT → a mapping, keeping what exists
"""
