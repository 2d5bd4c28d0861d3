#!/usr/bin/env bash
# sqlglot 30.30.0 reads OPERATOR("Other one".=) and writes OPERATOR(Other one.=): the quotes of the schema are gone.
#
# Seen: the tree holds the text `Other one.=`, so that two different operators can look the same, and what is written
# back is no valid SQL: Postgres wants the schema quoted. pg_get_viewdef deparses so every comparison by an operator that
# is not in the search_path, for example that of an extension's type in a schema with a capital letter.
# Likely guess: a parser that keeps the quotes of every other identifier keeps these.
# Exits with an error once the quotes are kept.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet sqlglot==30.30.0
"$folder/venv/bin/python" - <<'PYTHON'
import sqlglot
from sqlglot import exp

query = 'SELECT a.x OPERATOR("Other one".=) a."Some y" FROM a'
tree = sqlglot.parse_one(query, read="postgres")
written = tree.sql(dialect="postgres")
print(sqlglot.__version__, "|", tree.find(exp.Operator).args["operator"], "|", written)
assert tree.find(exp.Operator).args["operator"] == "Other one.="
assert 'OPERATOR(Other one.=) a."Some y"' in written, written
PYTHON
