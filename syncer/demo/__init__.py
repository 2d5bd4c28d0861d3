"""The demo: a blog, a rename that reaches thousands of posts, and a question asked before and after it.

Everything in it is real: the servers of a sandbox of its own, the daemon as a process, the commands as a person
would type them. It ends with `syncer verify`, whose verdict is the demo's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from elasticsearch import Elasticsearch
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table

from syncer import shipped
from syncer.demo.blog import Blog
from syncer.demo.board import Board
from syncer.demo.daemon import DaemonProcess
from syncer.errors import SyncerError
from syncer.sandbox import ConsoleReporter, Endpoints, Sandbox

_OLD_NAME, _NEW_NAME = "John Smith", "John Doe"
_RENAME = "UPDATE users SET name = '{}' WHERE id = 1"
_INDEX = "blogpost"
# As this very program was called, so that what is shown can be pasted.
_COMMAND = sys.argv[0] if Path(sys.argv[0]).name == "syncer" else f"{sys.executable} -m syncer"
_PID_FILE = "daemon.pid"
_KEPT = "demo"

# The question of "Elasticsearch: The Definitive Guide", in one request.
_QUESTION: dict[str, Any] = {
    "query": {"bool": {"must": [{"match": {"title": "relationships"}}, {"match": {"user.name": "John"}}]}},
    "aggs": {"authors": {"terms": {"field": "user.name.raw"}}},
    "size": 3,
    "track_total_hits": True,
}


def play(console: Console, *, keep: bool, posts: int) -> bool:
    """Play the demo; whether `syncer verify` found every document equal to its SELECT.

    Args:
        console: Where to show it.
        keep: Leave the servers and the daemon running, and say how to play with them.
        posts: How many posts the famous author has.

    Raises:
        SyncerError: A part of it failed; the servers are stopped then.
    """
    home = Sandbox().folder.parent
    _clear_away_dead(home)
    folder = home / (_KEPT if keep else f"demo-{os.getpid()}")
    if keep and folder.exists():
        console.print("The demo that was kept before is ended: this one takes its place.")
        _clear_away(folder)
    scene = _Scene(console, folder, Sandbox(folder / "servers", report=ConsoleReporter(console)))
    is_over = is_kept = False
    try:
        with _ended_like_ctrl_c():
            holds = scene.play(posts)
            is_over = True
            if keep:
                scene.say_how_to_go_on()
                is_kept = True
            else:
                scene.say_what_to_try()
    finally:
        if not is_over:
            console.print("Stopping …")
        if not is_kept:
            scene.end()
    return holds


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let a closed terminal, and a polite kill, end the demo as Ctrl-C does: with everything stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _clear_away_dead(home: Path) -> None:
    """What demos have left that were killed before they could clear up."""
    for folder in home.glob("demo-*"):
        number = folder.name.removeprefix("demo-")
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            _clear_away(folder)


def _clear_away(folder: Path) -> None:
    """End an earlier demo, and remove what it has left."""
    with suppress(OSError, ValueError):
        pid = int((folder / _PID_FILE).read_text())
        # Only if it still is that daemon: ids are given again.
        if b"syncer" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
    Sandbox(folder / "servers").stop()
    shutil.rmtree(folder)


class _Scene:
    """The demo, act by act."""

    def __init__(self, console: Console, folder: Path, sandbox: Sandbox) -> None:
        self._console = console
        self._folder = folder
        self._sandbox = sandbox
        self._environment: dict[str, str] = {}
        self._daemon: DaemonProcess | None = None

    def play(self, posts: int) -> bool:
        began = time.monotonic()
        self._act("Real servers: Postgres, Kafka, Elasticsearch")
        endpoints = self._sandbox.start()
        self._environment = {**endpoints.environment(), "SYNCER_CONFIG": str(self._folder / "config")}
        shutil.copytree(shipped.folder("config") / "documents" / _INDEX, self._folder / "config" / "documents" / _INDEX)
        blog = Blog(endpoints.postgres_dsn)

        self._act("A blog in Postgres, and one SELECT that says what a document is")
        blog.create()
        self._syncer("migrate")
        self._syncer("apply", "--yes")
        self._daemon = DaemonProcess(self._folder, self._environment)
        (self._folder / _PID_FILE).write_text(str(self._daemon.pid))
        self._console.print("$ syncer run &", style="bold")

        board = Board(self._console, blog, self._daemon)
        with Elasticsearch(endpoints.elasticsearch_url) as client:
            self._play_blog(blog, board, client, posts)
        holds = self._syncer("verify", may_fail=True)
        self._console.print(f"\nAll of it took {time.monotonic() - began:.0f} s.")
        return holds

    def _play_blog(self, blog: Blog, board: Board, client: Elasticsearch, posts: int) -> None:
        self._act(f"The application writes {posts * 6 // 5:,} posts; it knows nothing of syncer")
        blog.write_users()
        authors = blog.committed
        board.watch("the authors", lambda: board.handled >= authors)
        blog.write_posts(posts)
        board.watch("their posts", lambda: _count(client, {"match_all": {}}) >= blog.posts)
        blog.start_chatter()

        self._act('The question, in one query: posts titled "relationships" by users called John')
        self._answer(client)

        self._act(f"{_OLD_NAME} becomes {_NEW_NAME}: one row in Postgres, {posts:,} documents in Elasticsearch")
        self._console.print(f'$ psql -c "{_RENAME.format(_NEW_NAME)}"', style="bold", markup=False)
        committed = blog.rename(_NEW_NAME)
        renamed = {"term": {"user.name.raw": _NEW_NAME}}
        board.watch("renaming, while readers go on commenting", lambda: _count(client, renamed) >= posts)
        seconds = time.monotonic() - committed
        self._console.print(
            f"[bold green]{posts:,} posts show the new name {seconds:.2f} s after the commit[/], "
            "searchable, each with its own version"
        )
        self._answer(client)

        self._act("Readers go quiet; every document is compared with its SELECT")
        blog.stop_chatter()

    def end(self) -> None:
        """Stop everything, and leave nothing behind."""
        if self._daemon is not None:
            self._daemon.stop()
        self._sandbox.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    # Showing

    def _act(self, title: str) -> None:
        if self._console.is_terminal:
            self._console.print()
            self._console.print(Rule(f"[bold]{escape(title)}", align="left", style="blue"))
        else:
            self._console.print(f"\n# {title}", markup=False)

    def _syncer(self, *arguments: str, may_fail: bool = False) -> bool:
        self._console.print(f"$ syncer {' '.join(arguments)}", style="bold", markup=False)
        done = subprocess.run(
            [sys.executable, "-m", "syncer", *arguments],
            env={**os.environ, **self._environment, "COLUMNS": str(self._console.width)},
            capture_output=True,
            text=True,
            check=False,
        )
        self._console.print(done.stdout.rstrip(), markup=False)
        if done.returncode and not may_fail:
            raise SyncerError(f"syncer {' '.join(arguments)} failed", hint=done.stderr)
        return done.returncode == 0

    def _answer(self, client: Elasticsearch) -> None:
        client.indices.refresh(index=_INDEX)
        body = client.search(index=_INDEX, **_QUESTION).body
        authors = ", ".join(
            f"{one['key']} ({one['doc_count']:,})" for one in body["aggregations"]["authors"]["buckets"]
        )
        table = Table("id", "title", "user.name", "comments", box=None, pad_edge=False, header_style="dim")
        for hit in body["hits"]["hits"]:
            source = hit["_source"]
            table.add_row(
                hit["_id"], escape(source["title"]), escape(source["user"]["name"]), str(len(source["comments"]))
            )
        self._console.print(
            f"{body['hits']['total']['value']:,} posts in {body['took']} ms, by {authors}; the best three:"
        )
        self._console.print(table)

    def say_what_to_try(self) -> None:
        self._paste(
            "\nTry next:\n"
            f"  {_COMMAND} demo --keep         the same, left running to play with psql and curl\n"
            f"  {_COMMAND} sandbox start       the servers alone, for a document of your own\n"
            f"  {_COMMAND} --help"
        )

    def _paste(self, text: str) -> None:
        """Show what is meant to be pasted: no line is broken."""
        self._console.print(text, markup=False, soft_wrap=True)

    def say_how_to_go_on(self) -> None:
        endpoints = self._sandbox.status().endpoints
        if endpoints is None:
            raise SyncerError("The servers of the demo have ended", hint=f"Their logs are in {self._folder}")
        self._paste(_how_to_go_on(self._folder, self._sandbox, endpoints, self._environment))


def _count(client: Elasticsearch, query: dict[str, Any]) -> int:
    """How many posts a search finds now: Elasticsearch makes new ones visible once a second."""
    return int(client.count(index=_INDEX, query=query)["count"])


def _how_to_go_on(folder: Path, sandbox: Sandbox, endpoints: Endpoints, environment: dict[str, str]) -> str:
    exports = "\n".join(f"  export {name}={value}" for name, value in environment.items())
    question = f"{endpoints.elasticsearch_url}/{_INDEX}/_search?q=user.name:Doe&size=1&pretty"
    psql = sandbox.postgres.bin_folder / "psql"
    return f"""
Everything is left running. To play with it:
{exports}
  {psql} "$SYNCER_POSTGRES_DSN" -c "{_RENAME.format("Johnny Doe")}"
  curl '{question}'
  {_COMMAND} status
  {_COMMAND} verify
  tail -f {folder / "daemon.log"}
To end it:
  kill {(folder / _PID_FILE).read_text()}
  {_COMMAND} sandbox stop --folder {sandbox.folder}"""
