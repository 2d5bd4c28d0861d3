"""The blog that is measured: its tables, its index, and other indices like it for the references."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
from elasticsearch import Elasticsearch

from syncer.elasticsearch.indices import GC_DELETES_SECONDS
from syncer.sandbox import Endpoints, Sandbox
from tests.benchmarks import ceiling
from tests.benchmarks.contest import Run, run_process, say
from tests.benchmarks.processes import Servers
from tests.support.world import BLOG_SCHEMA, REPOSITORY, World

LARGE_AUTHOR, MIDDLE_AUTHOR = 1001, 1002
_MIDDLE, _OTHERS = 5_000, 20_000
_DATA = Path(__file__).parent / "data.sql"
_MERGE_SECONDS = 1800
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blog:
    """Posts in the tables of ``syncer/demo/blog.sql``, and the document ``config/documents/blogpost``.

    Args:
        world: Its database and its indices.
        posts: How many.
        large: How many of them, the first ones, are of `LARGE_AUTHOR`.
        middle: How many, the next ones, are of `MIDDLE_AUTHOR`.
    """

    world: World
    posts: int
    large: int = 0
    middle: int = 0

    @property
    def others(self) -> range:
        """The posts that are dealt out among a thousand authors."""
        return range(self.large + self.middle + 1, self.posts + 1)

    @property
    def servers(self) -> Servers:
        """What the servers use."""
        return Servers(self.world.sandbox)

    def make(self) -> None:
        """Load the tables, put the document active, and write every document once."""
        say(f"making a blog of {self.posts:,} posts")
        self.world.make()
        self.world.sql(BLOG_SCHEMA.read_text())
        numbers = {":posts": self.posts, ":large": self.large, ":middle": self.middle}
        data = _DATA.read_text()
        for name, number in numbers.items():
            data = data.replace(name, str(number))
        with psycopg.connect(self.world.dsn) as connection:
            connection.execute(data)
        ceiling.prebuild(self.world.dsn, self._select.read_text(), self.posts, self.bodies)
        self.syncer("migrate")
        self.syncer("apply", "--yes")

    # Who is measured

    def syncer(self, *arguments: str) -> Run:
        """A command of syncer, in a process of its own, with no daemon beside it."""
        command = [sys.executable, "-m", "syncer", *arguments]
        return run_process(command, self.posts, servers=self.servers, environment=self.world.environment)

    def initial_load_seconds(self, kind: str = "initial_load") -> float:
        """From when the last job of that kind was asked for until its last page was done, whatever came then."""
        query = """
            SELECT extract(epoch FROM finished_at - created_at)::float8 FROM syncer.job
            WHERE kind = %s ORDER BY id DESC LIMIT 1
        """
        return float(self.world.sql(query, kind)[0][0])

    def bare_loop(self, index: str, first: int = 1, last: int | None = None) -> Run:
        """The bare loop over these posts, by default all, in a process of its own."""
        last = last or self.posts
        where = (self.world.dsn, self.world.endpoints.elasticsearch_url, index)
        posts = (str(first), str(last))
        command = [sys.executable, "-m", "tests.benchmarks.bare_loop", *where, str(self._select), *posts]
        return run_process(command, last - first + 1, servers=self.servers)

    def ceiling(self, index: str, in_flight: int) -> Run:
        """The ceiling, in a process of its own."""
        where = (self.world.endpoints.elasticsearch_url, index, str(self.bodies))
        command = [sys.executable, "-m", "tests.benchmarks.ceiling", *where, str(in_flight)]
        return run_process(command, self.posts, servers=self.servers)

    # Their indices

    def index_like_it(self, name: str) -> str:
        """An empty index with the settings and the mapping that syncer's own has."""
        index = f"{self.world.alias}-{name}"
        body = json.loads((self.world.document_folder / "index.json").read_text())
        settings = {"index.gc_deletes": f"{GC_DELETES_SECONDS}s", **body["settings"]}
        with self.elasticsearch() as client:
            client.indices.delete(index=index, ignore_unavailable=True)
            client.indices.create(index=index, settings=settings, mappings=body["mappings"])
        return index

    def loaded_like_it(self, name: str) -> str:
        """An index of that kind that holds every document, for a reference that overwrites."""
        index = self.index_like_it(name)
        self.ceiling(index, 4)
        return index

    def settle(self, index: str) -> None:
        """Bring an index and the tables into the state that each run begins with.

        The index: one segment without deleted documents, on disk, and in use by searches. The tables: no dead rows, no
        dirty pages.
        """
        with self.elasticsearch() as client:
            # Otherwise Elasticsearch keeps what was overwritten for hours, and an index that was written more often
            # merges more. It looks at this setting every 30 s.
            client.indices.put_settings(index=index, settings={"index.soft_deletes.retention_lease.period": "0s"})
            client.indices.forcemerge(index=index, max_num_segments=1)
            while self._has_deleted(client, index):
                time.sleep(_LOOK_SECONDS)
                client.indices.flush(index=index, force=True)  # which is when it takes notice of what may go
                client.indices.forcemerge(index=index, max_num_segments=1)
            client.indices.flush(index=index)
            found = client.search(index=index, size=0, track_total_hits=True).body["hits"]["total"]["value"]
        if found not in (0, self.posts):
            raise RuntimeError(f"{index} has {found:,} documents, not {self.posts:,}")
        with psycopg.connect(self.world.dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE users, posts, comments")
            connection.execute("CHECKPOINT")

    @staticmethod
    def _has_deleted(client: Elasticsearch, index: str) -> bool:
        found = client.indices.segments(index=index).body["indices"].values()
        shards = [copy for one in found for copies in one["shards"].values() for copy in copies]
        return any(one["deleted_docs"] for shard in shards for one in shard["segments"].values())

    def count(self, **query: Any) -> int:
        """How many documents searches find by a query, once everything that is written can be found."""
        with self.elasticsearch() as client:
            client.indices.refresh(index=self.world.alias)
            return int(client.count(index=self.world.alias, query=query).body["count"])

    def elasticsearch(self) -> Elasticsearch:
        """A client that has time."""
        return Elasticsearch(self.world.endpoints.elasticsearch_url, request_timeout=_MERGE_SECONDS)

    @property
    def _select(self) -> Path:
        return REPOSITORY / "config" / "documents" / "blogpost" / "select.sql"

    @property
    def bodies(self) -> Path:
        """The prebuilt bodies of bulk requests, one after the other."""
        return self.world.folder / "bodies"


@dataclass
class Blogs:
    """The blogs of one run, each made when it is first asked for, on the servers of one sandbox.

    Args:
        sandbox: Its servers.
        endpoints: Where they answer.
        posts: How many documents are written in most measures.
    """

    sandbox: Sandbox
    endpoints: Endpoints
    posts: int
    _made: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def even(self) -> Blog:
        """So many posts, a thousand authors."""
        return self._made.enter_context(self.blog(posts=self.posts))

    @cached_property
    def crowded(self) -> Blog:
        """One author has so many posts, another 5,000, and others have 20,000 among them."""
        posts = self.posts + _MIDDLE + _OTHERS
        return self._made.enter_context(self.blog(posts=posts, large=self.posts, middle=_MIDDLE))

    @contextmanager
    def blog(self, *, posts: int, large: int = 0, middle: int = 0) -> Iterator[Blog]:
        """A blog that is gone at the end."""
        with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
            world = World(sandbox=self.sandbox, endpoints=self.endpoints, folder=Path(folder), is_preloaded=False)
            made = Blog(world=world, posts=posts, large=large, middle=middle)
            try:
                made.make()
                yield made
            finally:
                world.unmake()

    def close(self) -> None:
        """Unmake those that were made."""
        self._made.close()
