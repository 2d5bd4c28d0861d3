"""Drafts a document's folder for `syncer init`, from a table or a SELECT.

document     the files: a tree of tables → select.sql, index.json, document.yaml; never over existing files
tree         the tables of a draft, along foreign keys
mapping      a SELECT → the mapping of its fields, keeping what exists
shape        a SELECT → its fields and their types, down into the JSON that it builds
guess        sampled JSON → a mapping
field        a type → a mapping
naming       names of fields and documents; names that look personal
catalogue    the tables and their foreign keys
"""
