"""Drafts of `init` held against the documents that teams would want: ten schemas, and generated ones."""
