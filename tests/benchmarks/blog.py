"""The blog that is measured: its tables, its index, and other indices like it for the references."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import psycopg
from elasticsearch import Elasticsearch

from syncer.indices import GC_DELETES_SECONDS
from tests.benchmarks import ceiling
from tests.benchmarks.contest import Run, run_process
from tests.harness import BLOG_SCHEMA, REPOSITORY, World

_DATA = Path(__file__).parent / "data.sql"
_MERGE_SECONDS = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Blog:
    """Posts in the tables of ``syncer/demo/blog.sql``, and the document ``config/documents/blogpost``.

    Args:
        world: Its database and its indices.
        posts: How many.
    """

    world: World
    posts: int

    def make(self) -> None:
        """Fill the tables, put the document in force, and write every document once."""
        self.world.make()
        self.world.sql(BLOG_SCHEMA.read_text())
        with psycopg.connect(self.world.dsn) as connection:
            connection.execute(_DATA.read_text().replace(":posts", str(self.posts)))
        ceiling.prebuild(self.world.dsn, self._select.read_text(), self.posts, self._bodies)
        self.syncer("migrate")
        self.syncer("apply", "--yes")

    # Who is measured

    def syncer(self, *arguments: str) -> Run:
        """A command of syncer, in a process of its own, with no daemon beside it."""
        command = [sys.executable, "-m", "syncer", *arguments]
        return run_process(command, self.posts, environment=self.world.environment)

    def drop_standby(self) -> None:
        """Drop what the rebuild before has left; the first has left nothing."""
        if self.world.sql("SELECT FROM syncer.document WHERE role = 'standby'"):
            self.syncer("backfill", "blogpost", "--drop-old")

    def fill_seconds(self) -> float:
        """From when the last fill was asked for until its index was complete, before it was settled and verified."""
        query = """
            SELECT extract(epoch FROM finished_at - created_at)::float8 FROM syncer.job
            WHERE kind = 'fill' ORDER BY id DESC LIMIT 1
        """
        return float(self.world.sql(query)[0][0])

    def bare_loop(self, index: str) -> Run:
        """The bare loop, in a process of its own."""
        where = (self.world.dsn, self.world.endpoints.elasticsearch_url, index)
        command = [sys.executable, "-m", "tests.benchmarks.bare_loop", *where, str(self._select), str(self.posts)]
        return run_process(command, self.posts)

    def ceiling(self, index: str, in_flight: int) -> Run:
        """The ceiling, in a process of its own."""
        where = (self.world.endpoints.elasticsearch_url, index, str(self._bodies))
        command = [sys.executable, "-m", "tests.benchmarks.ceiling", *where, str(in_flight)]
        return run_process(command, self.posts)

    # Their indices

    def index_like_it(self, name: str) -> str:
        """An empty index with the settings and the mapping that syncer's own has."""
        index = f"{self.world.alias}-{name}"
        body = json.loads((self.world.document_folder / "index.json").read_text())
        settings = {"index.gc_deletes": f"{GC_DELETES_SECONDS}s", **body["settings"]}
        with self._elasticsearch() as client:
            client.indices.delete(index=index, ignore_unavailable=True)
            client.indices.create(index=index, settings=settings, mappings=body["mappings"])
        return index

    def settle(self, index: str) -> None:
        """Bring an index into the state that each run begins with: one segment, on disk, and in use by searches."""
        with self._elasticsearch() as client:
            client.indices.forcemerge(index=index, max_num_segments=1)
            client.indices.flush(index=index)
            found = client.search(index=index, size=0, track_total_hits=True).body["hits"]["total"]["value"]
        if found not in (0, self.posts):
            raise RuntimeError(f"{index} has {found:,} documents, not {self.posts:,}")

    def _elasticsearch(self) -> Elasticsearch:
        return Elasticsearch(self.world.endpoints.elasticsearch_url, request_timeout=_MERGE_SECONDS)

    @property
    def _select(self) -> Path:
        return REPOSITORY / "config" / "documents" / "blogpost" / "select.sql"

    @property
    def _bodies(self) -> Path:
        return self.world.folder / "bodies"
