"""PGSync, the closest peer, on the same schema and the same work, on the same machine.

In its WAL mode, since its default mode needs one more server, Redis. (With Redis it is faster where every change is a
transaction of its own, and slower to show a single change.) Both run on a Postgres with ``wal_level = logical`` that
decodes as text. The sandbox's Postgres lacks the plugin for that; one that the system has installed usually has it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from syncer.sandbox.cache import Cache
from syncer.sandbox.servers import PostgresServer
from tests.benchmarks.bulk_work import ONE_TRANSACTION, RENAME, drained, renamed
from tests.benchmarks.contest import Run
from tests.benchmarks.report import Figure, SkippedError, memory, say
from tests.benchmarks.world import LARGE_AUTHOR, Bench, Peer

VERSION = "7.3.0"
_POSTS_MAX = 20_000
_LISTENS_SECONDS = 60.0
_DEBIANS_FOLDERS = "usr/lib/postgresql/*/bin"
_LISTENS = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
_FORGET = "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots"


def pgsync(bench: Bench) -> Iterator[Figure]:
    """PGSync on the same work: waiting changes, and a rename; if it can be installed."""
    program, bin_folder = installed(), system_bin_folder()
    posts = min(bench.posts, _POSTS_MAX)
    with (
        bench.logical(partial(SystemPostgres, bin_folder)) as logical,
        logical.blog(posts=posts + posts // 4, large=posts) as blog,
    ):
        peer, bare = PGSync.of(blog), blog.loaded_like_it("bare")
        peer.program = program

        def alone(run: Callable[[], Run]) -> Run:
            blog.stop()
            peer.end()
            return run()

        takers: dict[str, Callable[[], Run]] = {
            "syncer drain": partial(drained, blog),
            "PGSync drain": peer.drained,
            "bare loop": partial(blog.bare_loop, bare, last=posts),
            "PGSync, one rename": peer.renamed,
            "syncer, one rename": partial(renamed, blog),
        }
        try:
            peer.fill()
            about = f"{posts:,} changes of distinct posts wait; an author of {posts:,} posts is renamed"
            contest = bench.contest({name: partial(alone, run) for name, run in takers.items()}, about)
        finally:
            peer.end()
    yield contest.ratio("syncer drain", "PGSync drain")
    yield contest.ratio("syncer, one rename", "PGSync, one rename")
    for name in ("PGSync drain", "PGSync, one rename", "syncer drain", "syncer, one rename"):
        yield contest.ratio(name, "bare loop")
    yield contest.memory("syncer drain", "syncer, one rename")
    yield memory("peak memory of PGSync", contest.peak_bytes("PGSync drain"), at_most=None)


@dataclass(kw_only=True)
class PGSync(Peer):
    """PGSync on a copy of the blog's tables."""

    program: Path = Path()

    def is_settled(self) -> bool:
        """It does not say: it has settled when its writes end."""
        return True

    def fill(self) -> None:
        """Make its slot, and fill its index: by changes, since its WAL mode writes nothing else."""
        self.listen("--bootstrap")
        self.measured(partial(self.sql, "UPDATE posts SET views = views + 1"), self.posts)
        self.end()

    def drained(self) -> Run:
        """Change posts while it does not run; from its start to the last document."""
        token = f"t{uuid.uuid4().hex[:8]}"
        self._settle()
        self.sql(ONE_TRANSACTION.format(token=token, posts=self.large))
        self.sql("CHECKPOINT")
        run = self.measured(self.listen, self.large)
        self.end()
        self._look({"title": token})
        return run

    def renamed(self) -> Run:
        """Rename an author while it is idle; from the commit to the last document."""
        name = f"t{uuid.uuid4().hex}"
        self._settle()
        self.listen()
        run = self.measured(partial(self.sql, RENAME, name, LARGE_AUTHOR), self.large)
        self._look({"user.name": name})
        return run

    def _look(self, match: dict[str, str]) -> None:
        if (found := self.count(match=match)) != self.large:
            say(f"PGSync: {found:,} documents show the change, not {self.large:,}")

    def _settle(self) -> None:
        self.sql(_FORGET)
        self.settle()

    def listen(self, *arguments: str) -> None:
        """Start it, and return once it has its slot and its index."""
        file = self.folder / "pgsync.json"
        nodes = json.loads(Path(__file__).with_suffix(".json").read_text())
        file.write_text(json.dumps([{"database": self.name, "index": self.alias, "nodes": nodes}]))
        postgres, elasticsearch = urlsplit(self.dsn), urlsplit(self.endpoints.elasticsearch_url)
        environment = {
            "PG_HOST": str(postgres.hostname),
            "PG_PORT": str(postgres.port),
            "PG_USER": str(postgres.username),
            "ELASTICSEARCH_HOST": str(elasticsearch.hostname),
            "ELASTICSEARCH_PORT": str(elasticsearch.port),
            "CHECKPOINT_PATH": str(self.folder),
        }
        command = [str(self.program), "--config", str(file), "--wal", *arguments]
        self.launch(command, environment, is_ready=self._is_ready, seconds=_LISTENS_SECONDS)

    def _is_ready(self) -> bool:
        """Whether it has its slot and its index. A slot that is just being made counts as in use, too."""
        slot = re.sub(r"\W+", "", f"{self.name}_{self.alias}", flags=re.ASCII)
        with self.elasticsearch() as client:
            is_made = bool(client.indices.exists(index=self.alias))
        return is_made and self.sql(_LISTENS, slot) == [(True,)]


def installed() -> Path:
    """PGSync's command, installed into the sandbox's cache once, in an environment of its own: it pins what it uses."""
    folder = Cache().folder / f"pgsync-{VERSION}"
    if not (folder / "complete").exists():
        say(f"installing PGSync {VERSION}")
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"pgsync=={VERSION}"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SkippedError(f"PGSync {VERSION} cannot be installed here: {done.stderr.strip()[-300:]}")
        (folder / "complete").touch()
    return folder / "bin" / "pgsync"


def system_bin_folder() -> Path:
    """The newest Postgres of this machine that has the plugin ``test_decoding``."""
    on_path = shutil.which("pg_config")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/").glob(_DEBIANS_FOLDERS), key=lambda folder: int(folder.parent.name), reverse=True)
    for folder in found:
        asked = subprocess.run([str(folder / "pg_config"), "--pkglibdir"], capture_output=True, text=True, check=True)
        if (folder / "initdb").exists() and (Path(asked.stdout.strip()) / "test_decoding.so").exists():
            return folder
    raise SkippedError("PGSync needs a Postgres with the plugin test_decoding, which is not installed here")


class SystemPostgres(PostgresServer):
    """A Postgres that is installed on this machine, with a data folder of its own."""

    def __init__(self, server_bin_folder: Path, sandbox_folder: Path) -> None:
        super().__init__(sandbox_folder, Cache())
        self._bin_folder = server_bin_folder

    @property
    def server_bin_folder(self) -> Path:
        """Where its programs are."""
        return self._bin_folder

    def _initialise(self) -> None:
        command = [str(self.server_bin_folder / "initdb"), "--pgdata", str(self.data_folder), "--username=postgres"]
        command += ["--auth=trust", "--encoding=UTF8", "--locale=C"]
        arguments = self._account.popen_arguments()
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, env=self._environment(), **arguments
        )
