"""The demo's application: a blog that writes plain SQL to Postgres and does not know syncer."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import psycopg

from syncer.demo.guide import rows as guide
from syncer.demo.model import SCHEMAS

_SUBJECTS = ("Relationships", "Nest eggs", "Sourdough", "Trains", "Gardens", "Databases", "Sleep", "Letters")
_ANGLES = ("are cool", "explained", "for beginners", "revisited", "in winter", "and other stories", "at work", "")
_NAMES = ("Ada Byron", "Grace Murray", "Alan Mathison", "Edsger Wybe", "Barbara Jane", "Donald Ervin")
_WORDS = (
    *("it", "is", "not", "complicated", "at", "all", "when", "the", "truth", "lives", "in", "one", "place"),
    *("and", "every", "copy", "follows", "in", "order"),
)
_BATCH = 500

FAMOUS = 1
"""The author of most posts: John Smith, user 1 of the guide."""

_USERS = "INSERT INTO users (id, name, email, born) VALUES (%s, %s, %s, %s)"
_POSTS = "INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, %s, %s)"
_FIRST_FREE_ID = 1000


class BlogApplication:
    """Writes like an application: small transactions on several concurrent connections."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._random = random.Random(42)  # noqa: S311 - the same demo every time
        self._committed = 0
        self.posts = 0
        self._count_lock = threading.Lock()
        self._chatter_stop = threading.Event()
        self._chatter: threading.Thread | None = None
        self._chatter_error: BaseException | None = None

    @property
    def committed(self) -> int:
        """The number of rows written so far."""
        return self._committed

    def create(self) -> None:
        """Create the tables."""
        with self._connect() as connection:
            connection.execute(SCHEMAS["blog"].creation)

    def write_users(self) -> None:
        """Write the guide's two users and a few others."""
        others = [(10 + number, name, f"user{number}@example.com", None) for number, name in enumerate(_NAMES)]
        self._run(guide.USERS)
        self._write(_USERS, others)

    def write_posts(self, famous_posts: int) -> None:
        """Write the guide's two posts, thousands by John Smith, and a fifth as many by the others."""
        guides = self._run(guide.POSTS)
        authors = [FAMOUS] * (famous_posts - 1) + self._random.choices(range(10, 10 + len(_NAMES)), k=famous_posts // 5)
        self._random.shuffle(authors)
        self.posts = guides + len(authors)
        rows = [(_FIRST_FREE_ID + number, *self._post(author)) for number, author in enumerate(authors)]
        for at in range(0, len(rows), _BATCH):
            self._write(_POSTS, rows[at : at + _BATCH])

    def rename(self, name: str) -> float:
        """Rename the famous author; return the time of the commit on the monotonic clock."""
        self._write("UPDATE users SET name = %s WHERE id = %s", [(name, FAMOUS)])
        return time.monotonic()

    def start_chatter(self) -> None:
        """Start to comment, edit and delete in the background, like readers and authors."""
        self._chatter = threading.Thread(target=self._chat, name="blog", daemon=True)
        self._chatter.start()

    def stop_chatter(self) -> None:
        """Stop the background writes.

        Raises:
            psycopg.Error: One of them failed.
        """
        self._chatter_stop.set()
        if self._chatter is not None:
            self._chatter.join()
        if self._chatter_error is not None:
            raise self._chatter_error

    def _chat(self) -> None:
        try:
            with self._connect() as connection:
                while not self._chatter_stop.wait(0.01):
                    with connection.transaction():
                        self._chat_once(connection, _FIRST_FREE_ID + self._random.randrange(self.posts))
        except psycopg.Error as error:
            self._chatter_error = error

    def _chat_once(self, connection: psycopg.Connection[Any], post: int) -> None:
        comment = (post, self._random.choice(_NAMES), self._sentence(8), self._random.randint(16, 90))
        changed = connection.execute(
            "INSERT INTO comments (post_id, name, comment, age, stars) "
            "SELECT id, %s, %s, %s, 1 + %s %% 5 FROM posts WHERE id = %s",
            (*comment[1:], comment[3], post),
        ).rowcount
        match self._random.randrange(4):
            case 0:
                changed += connection.execute(
                    "UPDATE posts SET body = %s WHERE id = %s", (self._sentence(40), post)
                ).rowcount
            case 1:
                changed += connection.execute("DELETE FROM comments WHERE post_id = %s", (post,)).rowcount
        self._count(changed)

    def _post(self, author: int) -> tuple[int, str, str]:
        title = f"{self._random.choice(_SUBJECTS)} {self._random.choice(_ANGLES)}".strip()
        return author, title, self._sentence(60)

    def _sentence(self, words: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=words))

    def _run(self, statement: str) -> int:
        with self._connect() as connection:
            rows = connection.execute(statement).rowcount
        self._count(rows)
        return rows

    def _write(self, query: str, rows: list[tuple[Any, ...]]) -> None:
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.executemany(query, rows)
        self._count(len(rows))

    def _count(self, rows: int) -> None:
        with self._count_lock:
            self._committed += rows

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._dsn, application_name="blog")
