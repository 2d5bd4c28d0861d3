"""What every demo needs: real servers of its own, the daemon as a process, the commands as you would type them.

Each demo has a folder of its own, so demos run beside each other. It is deleted at the end, unless the demo is kept.
What a killed demo has left is ended by the next one.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from elasticsearch import Elasticsearch
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

from syncer.base import settings
from syncer.base.errors import SyncerError
from syncer.sandbox import Reporter, Sandbox
from syncer.sandbox.account import Account, make_open_folder
from syncer.sandbox.process import locked
from syncer.sandbox.server import LOOPBACK, EmbeddedServer
from syncer.verify.wait import Waiter

# The command as this program was called, so that the output can be pasted.
_COMMAND = sys.argv[0] if Path(sys.argv[0]).name == "syncer" else f"{sys.executable} -m syncer"
_ANSWER_SECONDS = 60
_WAIT_SECONDS = 300
_CONNECTIONS_MAX = 8
_KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encore:
    """What to try by hand on a kept demo: SQL, and a search that shows the change.

    The search is given as arguments to curl; ``{url}`` stands for Elasticsearch.
    """

    change: str
    search: str


class Daemon(EmbeddedServer):
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

    def _fetch(self) -> None:
        pass

    def _prepare(self) -> None:
        pass

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SYNCER_WEB_PORT": str(self.port)}

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-m", "syncer", "run"]

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Stage:
    """The servers, the daemon and the output of the demo in one folder."""

    client: Elasticsearch
    _waiter: Waiter

    def __init__(self, console: Console, folder: Path, *, with_kafka: bool = True) -> None:
        self._with_kafka = with_kafka
        self.console = console
        self.folder = folder
        self.sandbox = Sandbox(folder / "servers", report=Reporter(console))
        self.daemon = Daemon(folder, self.sandbox._cache, Account(), report=Reporter())  # noqa: SLF001 - not used

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start the servers, and point the settings of this process at them."""
        self.heading(f"Real servers: Postgres, {'Kafka, ' if self._with_kafka else ''}Elasticsearch")
        endpoints = self.sandbox.start(with_kafka=self._with_kafka)
        for name in [name for name in os.environ if name.startswith("SYNCER_")]:
            del os.environ[name]
        os.environ |= {**endpoints.environment(), "SYNCER_CONFIG": str(self.folder / "config")}
        # A small machine may be slow to answer after its servers have started.
        with (
            Elasticsearch(endpoints.elasticsearch_url, request_timeout=_ANSWER_SECONDS) as self.client,
            Waiter(settings.load(), pause=self._pause) as self._waiter,
        ):
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
        done = subprocess.run(
            [sys.executable, "-m", "syncer", *arguments],
            env={**os.environ, "COLUMNS": str(self.console.width)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.console.print(done.stdout.rstrip(), markup=False)
        if done.returncode and not may_fail:
            raise SyncerError(f"syncer {' '.join(arguments)} failed", hint=done.stderr)
        return done.returncode == 0

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
        began = time.monotonic()
        for token in tokens:
            if not self._waiter.wait(token, timeout_seconds=_WAIT_SECONDS, searchable=True).is_complete:
                raise SyncerError("Not every document could be written", hint=self.daemon.log_excerpt())
        return time.monotonic() - began

    def heading(self, title: str) -> None:
        """Print a heading."""
        if self.console.is_terminal:
            self.console.print()
            self.console.print(Rule(f"[bold]{escape(title)}", align="left", style="blue"))
        else:
            self.console.print(f"\n# {title}", markup=False)

    def paste(self, text: str, style: str = "") -> None:
        """Print text that can be pasted: without breaking lines."""
        self.console.print(text, markup=False, soft_wrap=True, style=style)

    def say_how_to_go_on(self, encore: Encore) -> None:
        """Print how to use what is left running, and how to end it."""
        names = [name for name in os.environ if name.startswith("SYNCER_")]
        exports = "\n".join(f"  export {name}={os.environ[name]}" for name in names)
        self.paste(f"""
Everything is left running, and shown at {self.daemon.address}. To play with it:
{exports}
  {self.sandbox.postgres.bin_folder / "psql"} "$SYNCER_POSTGRES_DSN" -c "{encore.change}"
  curl {encore.search.replace("{url}", os.environ["SYNCER_ELASTICSEARCH_URL"])}
  {_COMMAND} status --watch
  {_COMMAND} verify
  tail -f {self.daemon.log_file}
To end it:
{self.ending()}""")

    def ending(self) -> str:
        """Return the commands that end a kept demo."""
        return f"  kill {self.daemon.pid}\n  {_COMMAND} sandbox stop --folder {self.sandbox.folder}"

    def end(self) -> None:
        """Stop everything and delete the folder."""
        self.daemon.stop()
        self.sandbox.stop()
        shutil.rmtree(self.folder)


def perform(console: Console, play: Callable[[Stage], Encore], *, keep: bool, with_kafka: bool) -> bool:
    """Play a demo on servers of its own; return whether `syncer verify` found every document equal to its SELECT.

    If ``keep``, leave the servers and the daemon running, and print how to use them.

    Raises:
        SyncerError: A part of it failed; the servers are stopped.
    """
    with _ended_like_ctrl_c(), _own_stage(console, with_kafka=with_kafka) as stage, stage.started():
        encore = play(stage)
        stage.heading("Every document is compared with its SELECT")
        holds = stage.syncer("verify", may_fail=True)
        if keep:
            stage.say_how_to_go_on(encore)
            (stage.folder / _KEPT).touch()
        else:
            stage.paste(
                "\nTry next:\n"
                f"  {_COMMAND} demo --list         the guide's models, one by one\n"
                f"  {_COMMAND} demo --keep         left running to play with psql and curl\n"
                f"  {_COMMAND} sandbox start       the servers alone, for a document of your own\n"
                f"  {_COMMAND} --help"
            )
    return holds


@contextmanager
def _own_stage(console: Console, *, with_kafka: bool) -> Iterator[Stage]:
    """Yield a stage in a folder that no other demo uses; end it afterwards, unless it is kept."""
    demos = Sandbox().folder.parent / "demos"
    make_open_folder(demos)
    with ExitStack() as held:
        with locked(demos / "lock"):
            for folder in demos.glob("demo-*"):
                _end_if_left(console, folder)
            own = Path(tempfile.mkdtemp(prefix="demo-", dir=demos))
            own.chmod(0o755)  # for root's servers, which run as nobody
            held.enter_context(locked(own / "lock"))
        stage = Stage(console, own, with_kafka=with_kafka)
        try:
            yield stage
        except BaseException:  # including Ctrl-C
            console.print("Stopping …")
            raise
        finally:
            if not (own / _KEPT).exists():
                stage.end()


def _end_if_left(console: Console, folder: Path) -> None:
    """End what a demo has left that was killed, or kept and stopped; leave one alone that is running or kept."""
    with (folder / "lock").open("a") as handle, suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stage = Stage(Console(quiet=True), folder)
        if (folder / _KEPT).exists() and stage.daemon.is_running():
            console.print(f"An earlier demo is still running. To end it:\n{stage.ending()}", soft_wrap=True)
        else:
            stage.end()


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that everything is stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
