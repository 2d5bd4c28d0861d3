"""A daemon that runs while something is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from syncer.base.settings import Settings
from syncer.documents.registry import Catalogue
from syncer.jobs import model
from syncer.kafka.topic import Observer
from syncer.monitoring import status
from tests.benchmarks import processes
from tests.benchmarks.blog import LARGE_AUTHOR, Blog
from tests.benchmarks.contest import PROCESS, Run
from tests.benchmarks.profile import Profile
from tests.benchmarks.writes import Span, Writes
from tests.support.world import Daemon

_LOOK_SECONDS = 0.1
_SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND application_name NOT IN ('', 'pgbench')
"""
_SETTLE_SECONDS = 600.0


@dataclass(slots=True)
class Live:
    """A ``syncer run`` of its own process, started and stopped as often as one likes.

    Args:
        blog: Whose documents it writes.
        is_profiled: Whether to find out where its time goes.
        peak_bytes: The most memory that any of its processes had when it was stopped.
    """

    blog: Blog
    is_profiled: bool = False
    peak_bytes: int = 0
    _daemon: Daemon | None = None
    _profile: Profile = field(init=False)

    def __post_init__(self) -> None:
        """Nothing of a daemon is known yet."""
        self._profile = Profile(self.blog.world.folder / "places.json")

    @property
    def pid(self) -> int:
        """The process id of the daemon that runs."""
        assert self._daemon is not None
        return self._daemon.process.pid

    def cpu_seconds(self) -> dict[str, float]:
        """What it has used so far, with what the servers did: of Postgres, its sessions only."""
        servers = self.blog.servers.cpu_seconds()
        sessions = 0.0
        for (pid,) in self.blog.world.sql(_SESSIONS):
            with suppress(psutil.NoSuchProcess):
                sessions += processes.cpu_seconds(pid)
        return {
            PROCESS: processes.cpu_seconds(self.pid),
            "Postgres": sessions,
            "Kafka": servers["Kafka"],
            "Elasticsearch": servers["Elasticsearch"],
        }

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._daemon is None:
            environment = self._profile.environment if self.is_profiled else {}
            # A daemon logs each batch only in tests.
            self._daemon = self.blog.world.daemon(environment={"SYNCER_LOG_LEVELS": "{}", **environment})

    def start_idle(self) -> None:
        """Start it, let it write something, and wait until nothing is on its way."""
        self.start()
        self.blog.world.sql("UPDATE posts SET title = title || ' ' WHERE id = %s", self.blog.posts)
        self.wait_settled()

    def stop(self) -> None:
        """Stop it, if it runs, and note what it used.

        Raises:
            RuntimeError: It did not end as it should.
        """
        if self._daemon is None:
            return
        self.peak_bytes = max(self.peak_bytes, processes.peak_bytes(self.pid))
        if self.is_profiled:
            self._profile.note_threads(self.pid)
        if self._daemon.stop() != 0:
            raise RuntimeError(f"The daemon failed: {self._daemon.log_file.read_text()[-2000:]}")
        if self.is_profiled:
            self._profile.note_places()
        self._daemon = None

    def kill(self) -> None:
        """SIGKILL, and note what it used."""
        self.peak_bytes = max(self.peak_bytes, processes.peak_bytes(self.pid))
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon = None

    def remarks(self) -> list[str]:
        """Where its processes' time went, if that was asked for."""
        return self._profile.said() if self.is_profiled else []

    def has_no_job(self) -> bool:
        """Whether no job is left to be done."""
        with self.blog.world.connect() as connection:
            return not model.unfinished(connection)

    def is_settled(self) -> bool:
        """Whether every change is done: nothing waits in the outbox, in the topic, or in a job."""
        settings: Settings = self.blog.world.settings
        with self.blog.world.connect() as connection, Observer(settings.kafka) as observer:
            stored, queued = status.ask_postgres(connection, Catalogue()), status.ask_kafka(observer)
        return not (stored.outbox_waiting or queued.waiting or stored.jobs)

    def wait_settled(self) -> None:
        """Return once every change is done.

        Raises:
            TimeoutError: It does not come to that.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not self.is_settled():
            if time.monotonic() > deadline:
                raise TimeoutError("The daemon does not come to the end of its work")
            time.sleep(_LOOK_SECONDS)

    def writes(self) -> Writes:
        """Looks at what the served index is given."""
        return Writes(self.blog.world.endpoints.elasticsearch_url, self.blog.world.alias)

    def rename(self, name: str, author: int = LARGE_AUTHOR) -> None:
        """A transaction of an application's own."""
        self.blog.world.sql("UPDATE users SET name = %s WHERE id = %s", name, author)

    def measured(
        self, work: Callable[[], None], documents: int, *, then: Callable[[], None] = lambda: None
    ) -> tuple[Run, Span]:
        """Do something that leads to so many documents, and say how long it took until the last was written.

        Args:
            work: It counts from its end, the commit; if no daemon runs, from its beginning, since it starts one.
            documents: At least so many are written.
            then: What else is done meanwhile.
        """
        used_before = processes.cpu_seconds(self.pid) if self._daemon else None
        with self.blog.servers.measured() as used, self.writes() as writes:
            began = time.monotonic()
            work()
            if used_before is not None:
                began = time.monotonic()
            then()
            span = writes.wait(documents, settled=self.is_settled)
        own = processes.cpu_seconds(self.pid) - (used_before or 0)
        run = Run(
            documents=documents,
            seconds=span.last_at - began,
            cpu_seconds={PROCESS: own, **used},
            peak_bytes=processes.peak_bytes(self.pid),
            writes=span.writes,
        )
        return run, span
