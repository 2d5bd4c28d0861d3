#!/usr/bin/env bash
# sqlglot 30.12.0 and 30.30.0 read `data ->> 'r'::text` differently, though only the minor version differs.
#
# Postgres binds :: before ->>, and pg_get_viewdef writes every literal with its cast. Seen: 30.12.0 reads it as
# (data ->> 'r')::text, 30.30.0 as data ->> ('r'::text). For the operator ?, the first makes of a boolean a text.
# Likely guess: what a tree is like changes with a major version only, so that a range such as >=30,<31 is safe.
# Exits with an error once either version reads it in the other way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
for version in 30.12.0 30.30.0; do
    "$folder/venv/bin/pip" install --quiet "sqlglot==$version"
    "$folder/venv/bin/python" - <<'PYTHON'
import sqlglot

expected = {"30.12.0": ["Cast", "Cast"], "30.30.0": ["JSONExtractScalar", "JSONBContainsTopKey"]}
columns = sqlglot.parse_one("SELECT t.data ->> 'r'::text, t.data ? 'r'::text FROM t", read="postgres").selects
names = [type(column).__name__ for column in columns]
print(sqlglot.__version__, names)
assert names == expected[sqlglot.__version__]
PYTHON
done
