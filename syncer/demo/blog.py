"""A blog of thousands of posts, and a rename that affects most of them: the first thing that a newcomer sees.

The application writes plain SQL to Postgres and does not know syncer. The same question is asked before and after.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
from elasticsearch import Elasticsearch
from rich.markup import escape
from rich.table import Table

from syncer.demo.guide import rows as guide
from syncer.demo.model import SCHEMAS
from syncer.demo.scene import Finale, Scene
from syncer.sandbox import Endpoints

_OLD_NAME, _NEW_NAME = "John Smith", "John Doe"
_RENAME = "UPDATE users SET name = '{}' WHERE id = 1"
_FAMOUS = 1
"""The author of most posts: John Smith, user 1 of the guide."""
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

_SUBJECTS = ("Relationships", "Nest eggs", "Sourdough", "Trains", "Gardens", "Databases", "Sleep", "Letters")
_ANGLES = ("are cool", "explained", "for beginners", "revisited", "in winter", "and other stories", "at work", "")
_NAMES = ("Ada Byron", "Grace Murray", "Alan Mathison", "Edsger Wybe", "Barbara Jane", "Donald Ervin")
_WORDS = (
    *("it", "is", "not", "complicated", "at", "all", "when", "the", "truth", "lives", "in", "one", "place"),
    *("and", "every", "copy", "follows", "in", "order"),
)
_BATCH = 500
_FIRST_FREE_ID = 1000
_USERS = "INSERT INTO users (id, name, email) VALUES (%s, %s, %s)"
_POSTS = "INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, %s, %s)"
_COMMENT = "INSERT INTO comments (post_id, name, comment, age, stars) SELECT id, %s, %s, 30, 4 FROM posts WHERE id = %s"


def play(scene: Scene, endpoints: Endpoints, client: Elasticsearch, *, posts: int) -> Finale:
    """Play the blog, whose famous author has so many posts."""
    began = time.monotonic()
    blog = _Blog(endpoints.postgres_dsn)
    scene.act("A blog in Postgres, and one SELECT that says what a document is")
    blog.run(SCHEMAS["blog"].creation)
    scene.activate(_INDEX)
    scene.act(f"The application writes {posts * 6 // 5:,} posts; it knows nothing of syncer")
    written = blog.write(posts)
    _wait(scene, client, "their posts", {"match_all": {}}, written)

    with blog.readers(written):
        scene.act('The question, in one query: posts titled "relationships" by users called John')
        _answer(scene, client)
        scene.act(f"{_OLD_NAME} becomes {_NEW_NAME}: one row in Postgres, {posts:,} documents in Elasticsearch")
        scene.console.print(f'$ psql -c "{_RENAME.format(_NEW_NAME)}"', style="bold", markup=False)
        blog.run(_RENAME.format(_NEW_NAME))
        committed = time.monotonic()
        renamed = {"term": {"user.name.raw": _NEW_NAME}}
        _wait(scene, client, "posts with the new name, while readers go on commenting", renamed, posts)
        scene.console.print(
            f"[bold green]{posts:,} posts show the new name {time.monotonic() - committed:.2f} s after the commit[/], "
            "searchable, each with its own version"
        )
        _answer(scene, client)
        scene.act("Readers go quiet; every document is compared with its SELECT")
    holds = scene.syncer("verify", may_fail=True)
    scene.console.print(f"\nFrom the first table to the last document it took {time.monotonic() - began:.0f} s.")
    return Finale(
        holds=holds,
        change=_RENAME.format("Johnny Doe"),
        search=f"'{{url}}/{_INDEX}/_search?q=user.name:Doe&size=1&pretty'",
    )


def _wait(scene: Scene, client: Elasticsearch, title: str, query: dict[str, Any], expected: int) -> None:
    """Return once a search finds so many posts; on a terminal, show the current number.

    Elasticsearch makes new ones visible once a second.
    """
    began = time.monotonic()
    found = 0
    with scene.console.status(f"{title} …") as status:

        def are_there() -> bool:
            nonlocal found
            found = int(client.count(index=_INDEX, query=query)["count"])
            status.update(f"{title}: {found:,} of {expected:,}")
            return found >= expected

        patience = _SECONDS_MAX + _SECONDS_PER_POST * expected
        scene.wait(are_there, lambda: f"{title}: {found:,} of {expected:,}", seconds_max=patience)
    scene.console.print(f"{title}: {expected:,} in {time.monotonic() - began:.1f} s")


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


class _Blog:
    """The application: it writes in small transactions, while readers comment on another connection."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._random = random.Random(42)  # noqa: S311 - the same demo every time

    def run(self, statement: str) -> None:
        """Run SQL in one transaction."""
        with self._connect() as connection:
            connection.execute(statement)

    def write(self, famous_posts: int) -> int:
        """Write the guide's rows, thousands of posts by John Smith, and a fifth as many by others; return how many."""
        self.run(f"{guide.USERS}; {guide.POSTS}")
        others = range(10, 10 + len(_NAMES))
        authors = [_FAMOUS] * (famous_posts - 1) + self._random.choices(others, k=famous_posts // 5)
        self._random.shuffle(authors)
        posts = [(_FIRST_FREE_ID + number, author, *self._post()) for number, author in enumerate(authors)]
        users = [(id_, name, f"user{id_}@example.com") for id_, name in zip(others, _NAMES, strict=True)]
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.executemany(_USERS, users)
            for at in range(0, len(posts), _BATCH):
                cursor.executemany(_POSTS, posts[at : at + _BATCH])
                connection.commit()
        return 2 + len(posts)

    @contextmanager
    def readers(self, posts: int) -> Iterator[None]:
        """Let readers and authors comment, edit and delete in the background.

        Raises:
            psycopg.Error: One of their transactions failed.
        """
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            chat = pool.submit(self._chat, posts, stop)
            try:
                yield
            finally:
                stop.set()
            chat.result()

    def _chat(self, posts: int, stop: threading.Event) -> None:
        with self._connect() as connection:
            while not stop.wait(0.01):
                post = _FIRST_FREE_ID + self._random.randrange(posts)
                connection.execute(_COMMENT, (self._random.choice(_NAMES), self._sentence(8), post))
                match self._random.randrange(4):
                    case 0:
                        connection.execute("UPDATE posts SET body = %s WHERE id = %s", (self._sentence(40), post))
                    case 1:
                        connection.execute("DELETE FROM comments WHERE post_id = %s", (post,))
                connection.commit()

    def _post(self) -> tuple[str, str]:
        title = f"{self._random.choice(_SUBJECTS)} {self._random.choice(_ANGLES)}".strip()
        return title, self._sentence(60)

    def _sentence(self, words: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=words))

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._dsn, application_name="blog")
