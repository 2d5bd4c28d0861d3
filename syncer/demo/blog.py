"""A blog of thousands of posts, and a rename that affects most of them: the first thing that a newcomer sees.

The application writes plain SQL to Postgres and does not know syncer. The same question is asked before and after.
"""

from __future__ import annotations

import time
from typing import Any

from rich.markup import escape
from rich.table import Table

from syncer.base.errors import SyncerError
from syncer.demo.guide import models, schema
from syncer.demo.stage import Stage

_OLD_NAME, _NEW_NAME = "John Smith", "John Doe"
_RENAME = "UPDATE users SET name = '{}' WHERE id = 1"
_INDEX = "blogpost"
_BATCH = 500

# The question of "Elasticsearch: The Definitive Guide", in one request.
_QUESTION: dict[str, Any] = {
    "query": {"bool": {"must": [{"match": {"title": "relationships"}}, {"match": {"user.name": "John"}}]}},
    "aggs": {"authors": {"terms": {"field": "user.name.raw"}}},
    "size": 3,
    "track_total_hits": True,
}

_USERS = """
INSERT INTO users (id, name, email)
SELECT 9 + n, name, 'user' || n || '@example.com'
FROM unnest('{Ada Byron,Grace Murray,Alan Mathison,Edsger Wybe,Barbara Jane,Donald Ervin}'::text[])
    WITH ORDINALITY AS names (name, n)
"""
_RENAMED = 5000
"""How many posts the famous author has: more than a worker writes by itself, so the rename is a job."""
# Numbers below {famous} are posts by John Smith.
_POSTS = """
INSERT INTO posts (id, user_id, title, body)
SELECT 1000 + n,
    CASE WHEN n < {famous} THEN 1 ELSE 10 + mod(n, 6) END,
    ('{{Relationships,Nest eggs,Sourdough,Trains,Gardens,Databases,Sleep,Letters}}'::text[])[1 + mod(n, 8)] || ' ' ||
    ('{{are cool,explained,for beginners,revisited,in winter,and other stories,at work}}'::text[])[1 + mod(n, 7)],
    (SELECT string_agg(('{{it,is,not,complicated,when,the,truth,lives,in,one,place,and,every,copy,follows}}'::text[])
        [1 + mod(n::bigint * word * 7919, 15)], ' ') FROM generate_series(1, 60) AS word)
FROM generate_series({first}, {last}) AS n
"""


def play(stage: Stage) -> str:
    """Play the blog; return another change to try."""
    began = time.monotonic()
    stage.heading("A blog in Postgres, and one SELECT that says what a document is")
    with stage.connect() as connection:
        connection.execute(schema("blog"))
    stage.activate(_INDEX)
    total = _RENAMED - 1 + _RENAMED // 5
    stage.heading(f"The application writes {total + 2:,} posts; it knows nothing of syncer")
    tokens = stage.commit(f"{models()['denormalised'].rows}; {_USERS}")
    batches = range(1, total + 1, _BATCH)
    statements = [
        _POSTS.format(famous=_RENAMED, first=first_id, last=min(first_id + _BATCH - 1, total)) for first_id in batches
    ]
    seconds = stage.wait([*tokens, *stage.commit(*statements)])
    stage.console.print(f"Searches show all of them {seconds:.1f} s after the last commit")

    stage.heading('The question, in one query: posts titled "relationships" by users called John')
    _answer(stage)
    stage.heading(f"{_OLD_NAME} becomes {_NEW_NAME}: one row in Postgres, {_RENAMED:,} documents in the index")
    stage.paste(f'$ psql -c "{_RENAME.format(_NEW_NAME)}"', style="bold")
    seconds = stage.wait(stage.commit(_RENAME.format(_NEW_NAME)))
    renamed = stage.client.count(index=_INDEX, query={"term": {"user.name.raw": _NEW_NAME}})["count"]
    if renamed != _RENAMED:
        raise SyncerError(f"{renamed:,} posts show the new name, not {_RENAMED:,}")
    stage.console.print(
        f"[bold green]{_RENAMED:,} posts show the new name {seconds:.2f} s after the commit[/], searchable"
    )
    _answer(stage)
    stage.console.print(f"\nFrom the first table to the last document it took {time.monotonic() - began:.0f} s.")
    return _RENAME.format("Johnny Doe")


def _answer(stage: Stage) -> None:
    stage.client.indices.refresh(index=_INDEX)
    body = stage.client.search(index=_INDEX, **_QUESTION).body
    buckets = body["aggregations"]["authors"]["buckets"]
    authors = ", ".join(f"{author['key']} ({author['doc_count']:,})" for author in buckets)
    table = Table("id", "title", "user.name", "comments", box=None, pad_edge=False, header_style="dim")
    for hit in body["hits"]["hits"]:
        source = hit["_source"]
        table.add_row(hit["_id"], escape(source["title"]), escape(source["user"]["name"]), str(len(source["comments"])))
    stage.console.print(f"{body['hits']['total']['value']:,} posts in {body['took']} ms, by {authors}; the best three:")
    stage.console.print(table)
