"""What processes use, and when an index was written, seen from outside."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg

from syncer.sandbox import Sandbox
from tests.benchmarks.report import PROCESS, Run

_LOOK_SECONDS, _WRITES_LOOK_SECONDS = 0.01, 0.02
_QUIET_SECONDS, _STUCK_SECONDS = 0.5, 300.0
_KILOBYTE = 1024
_FOOTPRINT_LOOK_SECONDS = 0.1
_FOOTPRINT = """
SELECT
    (
        SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'syncer %'
    ),
    sum(pg_total_relation_size(oid)) FILTER (WHERE relname LIKE 'outbox%')::float8,
    sum(pg_total_relation_size(oid)) FILTER (WHERE relname LIKE 'job%')::float8
FROM pg_class
WHERE relnamespace = 'syncer'::regnamespace AND relkind = 'r'
"""


def run_command(
    command: list[str], documents: int, *, sandbox: Sandbox, environment: Mapping[str, str] | None = None
) -> Run:
    """Run a command to its end, in a process of its own."""
    seconds_before, began = server_seconds(sandbox), time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=Path.cwd())
    peak = 0
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak = max(peak, peak_bytes(process.pid))
        time.sleep(_LOOK_SECONDS)
    took, (_, status, own_seconds) = time.monotonic() - began, ended
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    used = {PROCESS: own_seconds.ru_utime + own_seconds.ru_stime, **difference(server_seconds(sandbox), seconds_before)}
    return Run(documents=documents, seconds=took, cpu_seconds=used, peak_bytes=peak)


def cpu_seconds(pid: int | None) -> float:
    """Processor seconds used so far by a process and everything that it has started; 0 if there is none."""
    if pid is None:
        return 0
    root = psutil.Process(pid)
    times = root.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:2])
    return total


def peak_bytes(pid: int | None) -> int:
    """The most memory that a process has had; 0 if there is none.

    `os.wait4` would count the process that it was forked from.
    """
    if pid is None:
        return 0
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * _KILOBYTE for line in lines if line.startswith("VmHWM:")), 0)


def server_seconds(sandbox: Sandbox) -> dict[str, float]:
    """Processor seconds used so far by each server that runs, also for others that use the sandbox."""
    return {server.name: cpu_seconds(server.pid) for server in sandbox.servers if server.is_running()}


@contextmanager
def footprint(dsn: str) -> Iterator[dict[str, float]]:
    """What syncer's work costs Postgres besides time: its longest transaction, and the most disk of its tables."""
    most, is_over = {"longest transaction, s": 0.0, "outbox MB": 0.0, "jobs MB": 0.0}, threading.Event()

    def watch() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not is_over.wait(_FOOTPRINT_LOOK_SECONDS):
                [(seconds, outbox, jobs)] = connection.execute(_FOOTPRINT).fetchall()
                for name, value in zip(most, (seconds, outbox / 1e6, jobs / 1e6), strict=True):
                    most[name] = max(most[name], value)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        is_over.set()
        watching.join()


def difference(later: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    """What was used meanwhile."""
    return {name: seconds - earlier[name] for name, seconds in later.items()}


class Writes:
    """How often an index was written since this was made, and when first and last: Elasticsearch's own count."""

    def __init__(self, url: str, index: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc)
        self._path = f"/{index}/_stats/indexing?filter_path=_all.primaries.indexing.index_total"
        self._before = self._total()
        self.first_at = self.last_at = time.monotonic()
        self.made = 0

    def _total(self) -> int:
        self._connection.request("GET", self._path)
        return int(json.loads(self._connection.getresponse().read())["_all"]["primaries"]["indexing"]["index_total"])

    def wait(self, documents: int, *, settled: Callable[[], bool], quiet_seconds: float = _QUIET_SECONDS) -> None:
        """Return once so many documents are written, writes have ceased for so long, and nothing is in flight."""
        began = time.monotonic()
        while True:
            total, now = self._total() - self._before, time.monotonic()
            if total != self.made:
                self.first_at = self.first_at if self.made else now
                self.made, self.last_at = total, now
            quiet = now - max(began, self.last_at)
            if total >= documents and quiet >= quiet_seconds and settled():
                self._connection.close()
                return
            if quiet > _STUCK_SECONDS:
                raise TimeoutError(f"{total:,} documents were written, not {documents:,}, or not as they should be")
            time.sleep(_WRITES_LOOK_SECONDS)
