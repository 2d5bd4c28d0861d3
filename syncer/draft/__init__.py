"""Draft: a document's folder, drafted from a table as `syncer init` finds it in the database.

folder       writes it, and never over what is there
document     the files: select.sql, index.json, document.yaml
field        a column → its expression and its mapping
naming       what fields and documents are called
catalogue    which tables there are, and how they refer to one another
"""
