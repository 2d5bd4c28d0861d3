"""What every demo needs: real servers of its own, the daemon as a process, the commands as you would type them.

One demo runs at a time, in a folder that is deleted at the end, unless the demo is kept. A demo begins by ending what
the one before has left: one that was kept, or was killed.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from elasticsearch import Elasticsearch
from rich.console import Console

from syncer.base import settings
from syncer.base.errors import SyncerError
from syncer.elasticsearch.client import open_client
from syncer.sandbox import Sandbox, Versions
from syncer.sandbox.cache import Account, Cache, locked, make_open_folder
from syncer.sandbox.server import LOOPBACK, EmbeddedServer, answers_ok
from syncer.verify.wait import wait

# The command as this program was called, so that the output can be pasted.
_COMMAND = sys.argv[0] if Path(sys.argv[0]).name == "syncer" else f"{sys.executable} -m syncer"
_AFTER = f"""
Try next:
  {_COMMAND} demo --list         the guide's models, one by one
  {_COMMAND} demo --keep         left running to play with psql and curl
  {_COMMAND} sandbox start       the servers alone, for a document of your own
  {_COMMAND} --help"""
_ANSWER_SECONDS = 60
_WAIT_SECONDS = 300
_CONNECTIONS_MAX = 8


class DemoDaemon(EmbeddedServer):
    """``syncer run``, started and stopped like the servers; its settings are those of this process."""

    name = "Daemon"
    default_version = ""
    ready_seconds = 120.0

    @property
    def address(self) -> str:
        """The status page."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def _working_folder(self) -> Path:
        return Path.cwd()

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SYNCER_WEB_PORT": str(self.port)}

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-m", "syncer", "run"]

    def _is_ready(self) -> bool:
        return answers_ok(http.client.HTTPConnection(LOOPBACK, self.port, timeout=5), "/readyz")


class Stage:
    """The servers, the daemon and the output of a demo, in its folder."""

    client: Elasticsearch

    def __init__(self, console: Console, folder: Path) -> None:
        self.console = console
        self.folder = folder
        self.sandbox = Sandbox(folder / "servers", console=console)
        self.daemon = DemoDaemon(folder, Cache(account=Account()))

    @contextmanager
    def started(self, *, with_kafka: bool, opensearch: str | None) -> Iterator[None]:
        """Start the servers, and point the settings of this process at them."""
        self.sandbox = Sandbox(self.sandbox.folder, versions=Versions(opensearch=opensearch), console=self.console)
        kafka = "Kafka, " if with_kafka else ""
        self.heading(f"Real servers: Postgres, {kafka}{self.sandbox.elasticsearch.name}")
        endpoints = self.sandbox.start(with_kafka=with_kafka)
        for name in [name for name in os.environ if name.startswith("SYNCER_")]:
            del os.environ[name]
        os.environ |= {**endpoints.environment(), "SYNCER_CONFIG": str(self.folder / "config")}
        # A small machine may be slow to answer after its servers have started.
        with open_client(endpoints.elasticsearch_url, request_timeout=_ANSWER_SECONDS) as self.client:
            yield

    def _pause(self, seconds: float) -> None:
        if not self.daemon.is_running():
            raise SyncerError("The daemon has ended", hint=self.daemon.log_excerpt())
        time.sleep(seconds)

    def activate(self, *documents: str) -> None:
        """Activate documents of config/documents; start the daemon if it is not running."""
        for name in documents:
            source = settings.shipped("config") / "documents" / name
            shutil.copytree(source, self.folder / "config" / "documents" / name, dirs_exist_ok=True)
        is_first = not self.daemon.is_running()
        if is_first:
            self.syncer("migrate")
        self.syncer("apply", "--yes")
        if is_first:
            self.console.print("$ syncer run &", style="bold")
            self.daemon.start()
            self.console.print(f"Watch it: [bold blue]{self.daemon.address}")

    def syncer(self, *arguments: str, may_fail: bool = False) -> bool:
        """Run a command and print its output; return whether it succeeded.

        Raises:
            SyncerError: It failed, and ``may_fail`` is not set.
        """
        self.console.print(f"$ syncer {' '.join(arguments)}", style="bold", markup=False)
        completed = subprocess.run(
            [sys.executable, "-m", "syncer", *arguments],
            env={**os.environ, "COLUMNS": str(self.console.width)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.console.print(completed.stdout.rstrip(), markup=False)
        if completed.returncode and not may_fail:
            raise SyncerError(f"syncer {' '.join(arguments)} failed", hint=completed.stderr)
        return completed.returncode == 0

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect to Postgres as an application, which does not know syncer."""
        return psycopg.connect(os.environ["SYNCER_POSTGRES_DSN"], application_name="application")

    def commit(self, *statements: str) -> list[str]:
        """Run statements concurrently, each in a transaction of its own; return the tokens to `wait` for."""

        def run(statement: str) -> str:
            with self.connect() as connection:
                connection.execute(statement)
                return str(connection.execute("SELECT syncer.token()").fetchall()[0][0])

        with ThreadPoolExecutor(_CONNECTIONS_MAX) as pool:
            return list(pool.map(run, statements))

    def wait(self, tokens: Sequence[str]) -> float:
        """Return once searches show what these transactions have committed; return how long that took.

        Raises:
            SyncerError: The time is over, a document could not be written, or the daemon has ended.
        """
        began, timeout = time.monotonic(), _WAIT_SECONDS
        for token in tokens:
            waited = wait(settings.load(), token, timeout_seconds=timeout, searchable=True, pause=self._pause)
            if not waited.is_complete:
                raise SyncerError("Not every document could be written", hint=self.daemon.log_excerpt())
        return time.monotonic() - began

    def heading(self, title: str) -> None:
        """Print a heading."""
        self.console.print(f"\n# {title}", style="bold blue", markup=False)

    def paste(self, text: str, style: str = "") -> None:
        """Print text that can be pasted: without breaking lines."""
        self.console.print(text, markup=False, soft_wrap=True, style=style)

    def say_how_to_go_on(self, change: str) -> None:
        """Print how to use what is left running, with a change to begin with, and how to end it."""
        exports = [f"  export {name}={value}\n" for name, value in os.environ.items() if name.startswith("SYNCER_")]
        self.paste(f"""
Everything is left running, and shown at {self.daemon.address}. To play with it:
{"".join(exports)}\
  {self.sandbox.postgres.bin_folder / "psql"} "$SYNCER_POSTGRES_DSN" -c "{change}"
  curl "$SYNCER_ELASTICSEARCH_URL/_search?pretty"
  {_COMMAND} status
  {_COMMAND} verify
  tail -f {self.daemon.log_file}
To end it, or by starting another demo:
  kill {self.daemon.pid}
  {_COMMAND} sandbox stop --folder {self.sandbox.folder}""")

    def end(self) -> None:
        """Stop everything and delete the folder's content."""
        self.daemon.stop()
        self.sandbox.stop()
        for name in ("servers", "daemon", "config"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


def perform(
    console: Console, play: Callable[[Stage], str], *, keep: bool, with_kafka: bool, opensearch: str | None
) -> bool:
    """Play a demo on servers of its own; return whether `syncer verify` found every document equal to its SELECT.

    If ``keep``, leave the servers and the daemon running, and print how to use them; ``play`` returns SQL to try first.

    Raises:
        SyncerError: A part of it failed; the servers are stopped. Or another demo is running.
    """
    folder = Sandbox().folder.with_name("demo")
    make_open_folder(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "lock", waits=False))
        except BlockingIOError:
            raise SyncerError("Another demo is running", hint="Wait for its end, or press Ctrl-C there.") from None
        stage = Stage(console, folder)
        if stage.daemon.is_running():
            console.print("Stopping the demo that is still running …")
        stage.end()
        for number in (signal.SIGTERM, signal.SIGHUP):  # they stop everything, as Ctrl-C does
            signal.signal(number, signal.default_int_handler)
        try:
            with stage.started(with_kafka=with_kafka, opensearch=opensearch):
                change = play(stage)
                stage.heading("Every document is compared with its SELECT")
                holds = stage.syncer("verify", may_fail=True)
        except BaseException:  # including Ctrl-C
            console.print("Stopping …")
            stage.end()
            raise
        if keep:
            stage.say_how_to_go_on(change)
        else:
            stage.end()
            stage.paste(_AFTER)
    return holds
