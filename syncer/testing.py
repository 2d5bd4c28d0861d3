"""Fixtures for tests of your own that search: ``pytest_plugins = ["syncer.testing"]`` in your ``conftest.py``.

    syncer_servers    Postgres and Elasticsearch for the run: the embedded ones, or those that the environment names
    syncer_database   the connection string of the database with your tables: override it
    syncer_config     the config folder with your documents: override it, or set SYNCER_CONFIG
    syncer_index      the indices of these documents, kept up to date by a daemon of the run

Guarantees:

- Once `SearchIndex.wait` has returned, searches show everything that was committed before the call.
- A test that uses ``syncer_index`` begins when searches show what the test before has committed, deletes included.
- The servers, the daemon and its indices last until the end of the run, and no longer.
- SYNCER_POSTGRES_DSN and SYNCER_ELASTICSEARCH_URL are not read, so that no test writes to what a shell points at. The
  servers of the environment are SYNCER_TESTING_POSTGRES_DSN and SYNCER_TESTING_ELASTICSEARCH_URL.

A transaction that is rolled back has changed nothing, so there is nothing to wait for: tests that search must commit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan

from syncer.base import error_policy, postgres, settings
from syncer.base.errors import SyncerError, WaitTimeoutError
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.capture import progress
from syncer.documents import registry
from syncer.elasticsearch import client as elastic
from syncer.jobs import model

__all__ = ["SearchIndex", "Servers", "syncer_config", "syncer_database", "syncer_index", "syncer_servers"]

_POLL_SECONDS = 0.005
_LOGIN = re.compile(r"(?<=//).*(?=@)|(?<=password=)('(\\.|[^'])*'|\S*)")
"""The user and the password in a URL, and the password in a connection string of names and values."""
_STOP_SECONDS = 60
_LOG_BYTES = 2000
_UNCOMMITTED = """
SELECT application_name FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND backend_xid IS NOT NULL
  AND application_name NOT LIKE 'syncer %'
"""
_UNWRITTEN = """
SELECT format('%s is suspended: %s', name, suspended) FROM syncer.document WHERE suspended IS NOT NULL
UNION ALL
SELECT format('%s %s cannot be written: %s', document, id, error) FROM syncer.dead_letter
LIMIT 1
"""


class Address(str):
    """The address of a server. Its ``repr``, which pytest prints in tracebacks, has no password."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(_LOGIN.sub("…", str(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The addresses of the servers of a run."""

    postgres_dsn: str
    elasticsearch_url: str


@dataclass(frozen=True, kw_only=True)
class SearchIndex:
    """The indices of your documents. Its ``client`` is Elasticsearch's own."""

    client: Elasticsearch
    _settings: Settings = field(repr=False)
    _daemon: subprocess.Popen[bytes] = field(repr=False)
    _log: Path = field(repr=False)

    def wait(self, *, timeout_seconds: float = 60) -> None:
        """Return once searches show everything that was committed before.

        Raises:
            SyncerError: A transaction that has written is still open, a document cannot be written, or the daemon has
                ended.
            WaitTimeoutError: It takes longer than the timeout.
        """
        deadline = time.monotonic() + timeout_seconds
        with _connected(self._settings) as connection:
            if uncommitted := connection.execute(_UNCOMMITTED).fetchall():
                names = ", ".join(name or "without a name" for (name,) in uncommitted)
                raise SyncerError(
                    f"A transaction that has written is open (application_name: {names}), and is not indexed",
                    hint="Commit before you wait. A test that runs in a transaction and rolls it back has nothing to\n"
                    "search for: in Django, use TransactionTestCase or pytest.mark.django_db(transaction=True).",
                )
            moment = progress.moment(connection)
            while not progress.is_handled(connection, moment) or model.unfinished(connection, limit=1):
                self._pause(connection, deadline)
            _require_written(connection)
            for document in registry.documents(connection):
                self.client.indices.refresh(index=document.index)

    def documents(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the documents of a definition that searches find, by id."""
        hits = scan(self.client, index=self.alias(name), query={"query": {"match_all": {}}})
        return {hit["_id"]: hit["_source"] for hit in hits}

    def alias(self, name: str) -> str:
        """Return what searches of a definition use as the index."""
        with _connected(self._settings) as connection:
            return registry.named(connection, name)[0].index

    def _pause(self, connection: Connection, deadline: float) -> None:
        if self._daemon.poll() is not None:
            raise SyncerError("The daemon of the tests has ended", hint=_end_of(self._log))
        _require_written(connection)
        if time.monotonic() > deadline:
            jobs = ", ".join(f"{job.id} of {job.document}" for job in model.unfinished(connection))
            raise WaitTimeoutError("Not everything is indexed in time", hint=f"Unfinished jobs: {jobs or 'none'}")
        time.sleep(_POLL_SECONDS)


@contextmanager
def _connected(settings: Settings) -> Iterator[Connection]:
    try:
        connection = postgres.connect(settings.postgres, name="testing")
    except psycopg.OperationalError as error:  # psycopg's own traceback has the password
        raise error_policy.explain(error) or SyncerError(repr(error)) from None
    with closing(connection):
        yield connection


def _require_written(connection: Connection) -> None:
    """Refuse to go on if a document is suspended or cannot be written."""
    for (unwritten,) in connection.execute(_UNWRITTEN, prepare=True):
        raise SyncerError(unwritten)


@pytest.fixture(scope="session")
def syncer_servers() -> Iterator[Servers]:
    """Servers for the run; the first run on a machine downloads the embedded ones."""
    names = ("POSTGRES_DSN", "ELASTICSEARCH_URL")
    dsn, url = (Address(os.environ.get(f"SYNCER_TESTING_{name}", "")) for name in names)
    if (dsn or url) and os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1":
        hint = "Unset SYNCER_TESTING_POSTGRES_DSN and SYNCER_TESTING_ELASTICSEARCH_URL, or run with one worker."
        raise SyncerError(
            "Several workers of pytest-xdist cannot share servers: each would write the indices", hint=hint
        )
    if dsn and url:
        yield Servers(postgres_dsn=dsn, elasticsearch_url=url)
        return
    from syncer.sandbox import Sandbox  # noqa: PLC0415 - its packages are an extra

    with tempfile.TemporaryDirectory(prefix="syncer-testing-") as folder:
        Path(folder).chmod(0o755)  # if root runs the tests, the servers run as nobody
        sandbox = Sandbox(Path(folder) / "servers")
        try:
            endpoints = sandbox.start(with_kafka=False)
            yield Servers(
                postgres_dsn=dsn or Address(endpoints.postgres_dsn),
                elasticsearch_url=url or Address(endpoints.elasticsearch_url),
            )
        finally:
            sandbox.stop()


@pytest.fixture(scope="session")
def syncer_database(syncer_servers: Servers) -> str:
    """Where your tables are. Override it to create them; it has to return the connection string of the database."""
    return syncer_servers.postgres_dsn


@pytest.fixture(scope="session")
def syncer_config() -> Path:
    """The config folder, whose documents are applied; its ``syncer.yaml`` is not read."""
    return settings.config_folder()


@pytest.fixture(scope="session")
def _syncer_daemon(
    request: pytest.FixtureRequest,
    syncer_servers: Servers,
    syncer_config: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SearchIndex]:
    """Apply the documents, keep them up to date until the end of the run, and drop their indices."""
    database = Address(request.getfixturevalue("syncer_database"))  # an argument would be printed as it is
    folder = tmp_path_factory.mktemp("syncer")
    documents = shutil.copytree(syncer_config / "documents", folder / "documents")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("SYNCER_")} | {
        "SYNCER_CONFIG": str(folder),
        "SYNCER_POSTGRES_DSN": database,
        "SYNCER_ELASTICSEARCH_URL": syncer_servers.elasticsearch_url,
        "SYNCER_RELAY_POLL_SECONDS": str(_POLL_SECONDS),
        "SYNCER_WEB_PORT": "0",
    }
    configured = Settings.model_validate(
        {"postgres": {"dsn": database}, "elasticsearch": {"url": syncer_servers.elasticsearch_url}}
    )
    _command(environment, "migrate")
    _command(environment, "apply", "--yes")
    with _running(environment, folder / "daemon.log") as daemon, elastic.connect(configured.elasticsearch) as client:
        yield SearchIndex(client=client, _settings=configured, _daemon=daemon, _log=folder / "daemon.log")
    names = [document.name for document in documents.iterdir() if document.is_dir()]
    shutil.rmtree(documents)
    _command(environment, "apply", "--yes", *(f"--remove={name}" for name in names))


@pytest.fixture
def syncer_index(_syncer_daemon: SearchIndex) -> SearchIndex:
    """The indices of your documents, as the tables are when the test begins."""
    _syncer_daemon.wait()
    return _syncer_daemon


def _command(environment: Mapping[str, str], *arguments: str) -> None:
    __tracebackhide__ = True  # pytest would print the environment
    command = [sys.executable, "-m", "syncer", *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        printed = f"{ended.stdout}{ended.stderr}".replace(f"{environment['SYNCER_CONFIG']}/", "")  # it is a copy
        raise SyncerError(f"syncer {' '.join(arguments)} failed", hint=printed)


@contextmanager
def _running(environment: Mapping[str, str], log_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the daemon in a process of its own until the block ends."""
    with log_file.open("wb") as log:
        daemon = subprocess.Popen([sys.executable, "-m", "syncer", "run"], env=environment, stdout=log, stderr=log)
    try:
        yield daemon
    finally:
        daemon.terminate()
        daemon.wait(_STOP_SECONDS)


def _end_of(log_file: Path) -> str:
    return log_file.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
