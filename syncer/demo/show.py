"""The show: a blog, a rename that affects thousands of posts, and a question asked before and after it."""

from __future__ import annotations

import time
from typing import Any

from elasticsearch import Elasticsearch
from rich.markup import escape
from rich.table import Table

from syncer.demo.blog import BlogApplication
from syncer.demo.daemon import DaemonProcess
from syncer.demo.scene import Finale, Scene
from syncer.sandbox import Endpoints

_OLD_NAME, _NEW_NAME = "John Smith", "John Doe"
_RENAME = "UPDATE users SET name = '{}' WHERE id = 1"
_INDEX = "blogpost"
_SECONDS_MAX = 90
_SECONDS_PER_POST = 0.002

# The question of "Elasticsearch: The Definitive Guide", in one request.
_QUESTION: dict[str, Any] = {
    "query": {"bool": {"must": [{"match": {"title": "relationships"}}, {"match": {"user.name": "John"}}]}},
    "aggs": {"authors": {"terms": {"field": "user.name.raw"}}},
    "size": 3,
    "track_total_hits": True,
}


class Show:
    """Plays the blog, act by act."""

    def __init__(self, *, posts: int) -> None:
        self._posts = posts

    def play(self, scene: Scene, endpoints: Endpoints, client: Elasticsearch) -> Finale:
        """Play all acts."""
        began = time.monotonic()
        blog = BlogApplication(endpoints.postgres_dsn)
        scene.act("A blog in Postgres, and one SELECT that says what a document is")
        blog.create()
        daemon = scene.activate(_INDEX)
        self._play_blog(scene, blog, daemon, client)
        holds = scene.syncer("verify", may_fail=True)
        scene.console.print(f"\nFrom the first table to the last document it took {time.monotonic() - began:.0f} s.")
        return Finale(
            holds=holds,
            change=_RENAME.format("Johnny Doe"),
            search=f"'{{url}}/{_INDEX}/_search?q=user.name:Doe&size=1&pretty'",
        )

    def _play_blog(self, scene: Scene, blog: BlogApplication, daemon: DaemonProcess, client: Elasticsearch) -> None:
        posts = self._posts
        scene.act(f"The application writes {posts * 6 // 5:,} posts; it knows nothing of syncer")
        blog.write_users()
        authors = blog.committed
        scene.wait("the authors", daemon.handled, authors, seconds_max=_SECONDS_MAX)
        blog.write_posts(posts)
        patience = _SECONDS_MAX + _SECONDS_PER_POST * blog.posts
        scene.wait("their posts", lambda: _count(client, {"match_all": {}}), blog.posts, seconds_max=patience)
        blog.start_chatter()

        scene.act('The question, in one query: posts titled "relationships" by users called John')
        _answer(scene, client)

        scene.act(f"{_OLD_NAME} becomes {_NEW_NAME}: one row in Postgres, {posts:,} documents in Elasticsearch")
        scene.console.print(f'$ psql -c "{_RENAME.format(_NEW_NAME)}"', style="bold", markup=False)
        committed = blog.rename(_NEW_NAME)
        renamed = {"term": {"user.name.raw": _NEW_NAME}}
        scene.wait(
            "posts with the new name, while readers go on commenting",
            lambda: _count(client, renamed),
            posts,
            seconds_max=patience,
        )
        seconds = time.monotonic() - committed
        scene.console.print(
            f"[bold green]{posts:,} posts show the new name {seconds:.2f} s after the commit[/], "
            "searchable, each with its own version"
        )
        _answer(scene, client)

        scene.act("Readers go quiet; every document is compared with its SELECT")
        blog.stop_chatter()


def _answer(scene: Scene, client: Elasticsearch) -> None:
    client.indices.refresh(index=_INDEX)
    body = client.search(index=_INDEX, **_QUESTION).body
    authors = ", ".join(f"{one['key']} ({one['doc_count']:,})" for one in body["aggregations"]["authors"]["buckets"])
    table = Table("id", "title", "user.name", "comments", box=None, pad_edge=False, header_style="dim")
    for hit in body["hits"]["hits"]:
        source = hit["_source"]
        table.add_row(hit["_id"], escape(source["title"]), escape(source["user"]["name"]), str(len(source["comments"])))
    scene.console.print(f"{body['hits']['total']['value']:,} posts in {body['took']} ms, by {authors}; the best three:")
    scene.console.print(table)


def _count(client: Elasticsearch, query: dict[str, Any]) -> int:
    """Return how many posts a search finds now. Elasticsearch makes new ones visible once a second."""
    return int(client.count(index=_INDEX, query=query)["count"])
