"""What the tests stand on: a world of its own for each test, daemons as processes, and the naive oracle.

A world is a fresh database, topic, consumer group and index alias on the real servers of one sandbox. The oracle
shares no code with syncer: it runs the plain SELECT, scans Elasticsearch, and compares.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from syncer import daemon as syncer_daemon
from syncer.apply import activate, plan
from syncer.base import migrations, postgres
from syncer.base.errors import TopicError
from syncer.base.lifecycle import Component, Stop
from syncer.base.model import Target
from syncer.base.postgres import Connection, Link
from syncer.base.settings import ElasticsearchSettings, KafkaSettings, PostgresSettings, Settings, WorkerSettings
from syncer.capture import progress
from syncer.cli.context import Servers
from syncer.cli.load import load_all
from syncer.documents import definition, registry
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.client import open_client
from syncer.elasticsearch.indices import Indices
from syncer.indexing import failover
from syncer.indexing.flow_control import FlowControl
from syncer.indexing.writer import Writer
from syncer.jobs import model, queue
from syncer.jobs.model import JobKind
from syncer.kafka import topic
from syncer.relay.loop import Relay
from syncer.sandbox import Endpoints, Sandbox, Versions
from syncer.sandbox.server import BRIEF_JAVA
from syncer.sandbox.servers import ElasticsearchServer
from syncer.worker.job_loop import JobWorker
from syncer.worker.loop import Worker
from syncer.worker.source import OutboxSource, Source, TopicSource
from tests.support import preloaded
from tests.support.breakpoints import AS_IT_IS, HASTY, Plan

REPOSITORY = Path(__file__).parent.parent.parent
BLOG_SCHEMA = REPOSITORY / "syncer" / "demo" / "blog.sql"
OTHER_VERSIONS = "SYNCER_TEST_VERSIONS"
"""Names other versions than the sandbox's defaults, as JSON: {"postgres": "14", "kafka": "3.9"}."""
WITHOUT_KAFKA = "SYNCER_TEST_WITHOUT_KAFKA"
"""If it is set, tests that do not say so run without Kafka."""
USES_KAFKA = WITHOUT_KAFKA not in os.environ
"""Whether changes go through Kafka in tests that do not say so."""
DEADLINE_SECONDS = 120.0
"""How long a test waits for what is to come: a busy machine may pause a server for 20 s, and more than once."""
VERSIONS = Versions(**json.loads(os.environ.get(OTHER_VERSIONS, "{}")))
"""Those of the servers that the tests run on."""
NOT_PARSED = "mapper_parsing_exception" if VERSIONS.opensearch else "document_parsing_exception"
"""With which the search server refuses a document that does not fit the mapping."""
_LOOK_SECONDS, _LATER_LOOK_SECONDS = 0.05, 0.2
"""How often a test looks for what it waits for: in the first seconds, and later. A look at all documents is work."""
_OFTEN_SECONDS = 3
_LEADS = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = ANY (%s)"
_END_SECONDS = min(60, 2 * DEADLINE_SECONDS)
"""How long a component or a daemon may take to end, by the clock of a machine that has much to do: it says itself if
it was held up for longer than it may be."""


def wait_until(
    condition: Callable[[], bool], *, what: str, seconds: float = DEADLINE_SECONDS, detail: Callable[[], str] = str
) -> None:
    """Return when the condition holds; fail the test if it does not in time."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds:.0f} s: {what}\n{detail()}"
        time.sleep(_LOOK_SECONDS if waited < _OFTEN_SECONDS else _LATER_LOOK_SECONDS)


def require_kafka() -> None:
    """Skip a test of what only Kafka needs, if changes do not go through it."""
    if not USES_KAFKA:
        pytest.skip("needs Kafka")


def sandbox_in(folder: Path) -> Sandbox:
    """Servers in this folder, of which the search server can take snapshots."""
    sandbox = Sandbox(folder, versions=VERSIONS)
    sandbox.elasticsearch.settings["path.repo"] = str(sandbox.elasticsearch.folder / "snapshots")
    return sandbox


@contextmanager
def sandbox_of_its_own() -> Iterator[Sandbox]:
    """Servers that no other test uses; they are to be started, and are stopped."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        sandbox = sandbox_in(Path(folder) / "servers")
        try:
            yield sandbox
        finally:
            sandbox.stop()


@contextmanager
def nodes_of_its_own(
    versions: Versions, *, java_options: tuple[str, ...] = BRIEF_JAVA
) -> Iterator[tuple[ElasticsearchServer, ElasticsearchServer]]:
    """A search server of two nodes, the first of which can lead without the second."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        first, second = (Sandbox(Path(folder) / name, versions=versions).elasticsearch for name in ("first", "second"))
        for name, node in (("first", first), ("second", second)):
            del node.settings["discovery.type"]
            node.settings |= {"node.name": name, "cluster.name": Path(folder).name}
            node.java_options = java_options
        first.settings["cluster.initial_master_nodes"] = "first"
        try:
            first.start()
            with open_client(first.address, request_timeout=60) as client:
                [started] = client.nodes.info(metric="transport").body["nodes"].values()
            second.settings["discovery.seed_hosts"] = started["transport"]["publish_address"]
            second.start()
            yield first, second
        finally:
            second.stop()
            first.stop()


@contextmanager
def made(world: World, *, template: World | None = None) -> Iterator[World]:
    """A world with nothing in its database, or one like another, for as long as it is needed."""
    if template is None:
        world.make()
    try:
        if template is not None:
            world.make_as(template)
        yield world
    finally:
        world.unmake()


@contextmanager
def elsewhere(sandbox: Sandbox, endpoints: Endpoints, folder: Path, **addresses: str) -> Iterator[World]:
    """The blog on other servers."""
    with made(World(sandbox=sandbox, endpoints=replace(endpoints, **addresses), folder=folder)) as world:
        world.set_up()
        yield world


@contextmanager
def running(component: Component, *, seconds: float = _END_SECONDS) -> Iterator[Stop]:
    """A component at work in a thread of its own until the block ends.

    What ends it fails the test, as does a late end.
    """
    stop = Stop()
    work = ThreadPoolExecutor(1).submit(component.run, stop)
    try:
        yield stop
    finally:
        stop.request()
        wait([work], seconds)
    work.result(0)


def planned(connection: Connection, indices: Indices, config: Path, *, remove: Collection[str] = ()) -> plan.Plan:
    """What apply would do, without a preview."""
    active = plan.read_active(connection)
    definitions = [definition.load(folder) for folder in definition.folders(config)]
    steps = [plan.step(connection, indices, desired, active) for desired in definitions]
    return plan.assemble(connection, steps, active, remove=remove)


@dataclass
class Daemon:
    """A ``syncer run`` of its own process."""

    process: subprocess.Popen[bytes] | preloaded.Command
    log_file: Path

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """What it has logged so far, of this event or of all; a last line that is not whole yet is left out."""
        *whole, _ = self.log_file.read_bytes().split(b"\n")
        events = [json.loads(line) for line in whole if line.startswith(b"{") and name.encode() in line]
        return [event for event in events if name in ("", event["event"])]

    def wait_for(self, event: str, *, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
        """The first event of that name, once it is logged."""
        logged_events: list[dict[str, Any]] = []

        def is_logged() -> bool:
            has_ended = self.process.poll() is not None
            logged_events[:] = self.events(event)
            assert logged_events or not has_ended, f"the daemon has ended without {event}\n{self.log_file.read_text()}"
            return bool(logged_events)

        wait_until(is_logged, what=f"the daemon logs {event}", seconds=seconds, detail=self.log_file.read_text)
        return logged_events[0]

    def wait_for_worker(self) -> None:
        """Return once its worker receives changes: it leads, or has partitions."""
        self.wait_for("worker.partitions_assigned" if USES_KAFKA else "relay.led")

    def kill(self) -> None:
        """SIGKILL: nothing is finished, nothing is said."""
        self.process.kill()
        self.process.wait()

    def stop(self, *, seconds: float = _END_SECONDS) -> int:
        """SIGTERM; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.exit_code(seconds=seconds)

    def exit_code(self, *, seconds: float = _END_SECONDS) -> int:
        """Its exit code, once it has ended; if it does not in time, fail the test with the stacks of its threads."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            pytest.fail(f"the daemon does not end\n{self.log_file.read_text()}")


@dataclass
class World:
    """A database, a topic and an index alias that no other test uses."""

    sandbox: Sandbox
    endpoints: Endpoints
    folder: Path
    name: str = field(default_factory=lambda: "t" + uuid.uuid4().hex[:10])
    daemons: list[Daemon] = field(default_factory=list)
    worker_settings: dict[str, str] = field(default_factory=dict)
    documents: tuple[str, ...] = ("blogpost",)
    uses_kafka: bool = USES_KAFKA
    """Whether changes go through Kafka."""
    is_preloaded: bool = True
    """Whether commands and daemons are forks of a process that has loaded the program; measured ones are not."""
    _led: list[tuple[Connection, int]] = field(default_factory=list)
    _installation: str = ""

    # Settings

    @property
    def dsn(self) -> str:
        """The world's own database."""
        return self.endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{self.name}"

    def dsn_of(self, role: str) -> str:
        """The same for another role that may log in, which gets the password of this one."""
        self.sql(f"ALTER ROLE {role} PASSWORD '{conninfo_to_dict(self.dsn).get('password')}'")
        return self.dsn.replace("//postgres", f"//{role}", 1)

    @property
    def alias(self) -> str:
        """What searches use."""
        return f"blog-{self.name}"

    def alias_of(self, document: str) -> str:
        """What searches of that document use."""
        return self.alias if document == "blogpost" else f"{self.alias}-{document}"

    def index_of(self, document: str = "blogpost") -> str:
        """The physical index that searches of that document find."""
        return str(
            self.sql("SELECT index_name FROM syncer.document WHERE name = %s AND role = 'current'", document)[0][0]
        )

    def write_alias_of(self, document: str = "blogpost") -> str:
        """The alias that writers use in this epoch."""
        with self.connect() as connection:
            return registry.named(connection, document)[0].target.write_alias

    @property
    def settings(self) -> Settings:
        """The settings of a daemon of this world. Once `relay` has connected, they name its database."""
        settings = Settings(
            postgres=PostgresSettings(dsn=SecretStr(self.dsn)),
            kafka=KafkaSettings(
                bootstrap_servers=self.endpoints.kafka_bootstrap_servers if self.uses_kafka else "",
                topic=f"{self.name}.changes",
                partitions=4,
            ),
            elasticsearch=ElasticsearchSettings(url=self.endpoints.elasticsearch_url),
        )
        return settings.of(self._installation) if self._installation else settings

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables, for a process."""
        return {
            **os.environ,
            "SYNCER_CONFIG": str(self.config),
            "SYNCER_POSTGRES_DSN": self.dsn,
            "SYNCER_KAFKA_BOOTSTRAP_SERVERS": self.settings.kafka.bootstrap_servers,
            "SYNCER_KAFKA_TOPIC": f"{self.name}.changes",
            "SYNCER_KAFKA_PARTITIONS": "4",
            "SYNCER_ELASTICSEARCH_URL": self.endpoints.elasticsearch_url,
            "SYNCER_LOG_FORMAT": "json",
            "SYNCER_WEB_PORT": "0",
            **self.worker_settings,
        }

    # Making and unmaking

    @property
    def config(self) -> Path:
        """The world's own config folder."""
        return self.folder / "config"

    def make(self) -> None:
        """Create the database, and a config folder with the blogpost document."""
        # To the other template Postgres connects by itself now and then, and then it cannot be copied.
        self.execute_on_server(f'CREATE DATABASE "{self.name}" TEMPLATE template0')
        self.use("blogpost")

    def make_as(self, template: World) -> None:
        """Make this world as if it had been set up, from one that was and is not used; it takes a third as long."""
        self.execute_on_server(f'CREATE DATABASE "{self.name}" TEMPLATE "{template.name}"')
        self.use("blogpost")
        wait_until(self._has_topic, what="Kafka answers, and there is a topic")
        rename = f"replace({{}}, '{template.name}', '{self.name}')".format
        self.sql(
            f"""
            UPDATE syncer.installation SET installation = gen_random_uuid(), epoch = 0;
            UPDATE syncer.mark SET number = 0, positions = '{{}}';
            UPDATE syncer.job SET index_name = {rename("index_name")};
            UPDATE syncer.document
            SET index_name = {rename("index_name")},
                definition = {rename("definition::text")}::jsonb
            """
        )
        with self.connect() as connection, self.elasticsearch() as client:
            servers = self.parts(connection, client)
            failover.enter(connection, servers.index)
            for document in registry.documents(connection):
                body = servers.indices.body(Target.of_index(document.index_name.replace(self.name, template.name)))
                identity = {"document": document.name, "installation": registry.installation(connection)}
                body["mappings"]["_meta"] = {"syncer": identity}
                write_alias = {document.target.write_alias: {"is_hidden": True, "is_write_index": True}}
                client.indices.create(index=document.index_name, aliases={document.index: {}, **write_alias}, **body)

    def execute_on_server(self, statement: str) -> None:
        """Create or drop a database, once none of its sessions hinders that: one that vacuums, or is told to end."""

        def is_executed() -> bool:
            with psycopg.connect(self.endpoints.postgres_dsn, autocommit=True) as connection:
                try:
                    connection.execute(statement.encode())
                except psycopg.errors.ObjectInUse:
                    return False
            return True

        wait_until(is_executed, what=statement)

    def use(self, *documents: str) -> None:
        """Load the config folder with these documents as they are shipped, and with no other."""
        shutil.rmtree(self.config / "documents", ignore_errors=True)
        for name in documents:
            folder = shutil.copytree(REPOSITORY / "config" / "documents" / name, self.config / "documents" / name)
            (folder / "document.yaml").write_text(f"index: {self.alias_of(name)}\n")
        self.documents = documents

    def define(self, name: str, select: str, mappings: dict[str, Any] | None = None, **affects: str) -> Path:
        """Write the folder of a document, with an alias of this world; affects queries are named by their tables."""
        folder = self.config / "documents" / name
        (folder / "affects").mkdir(parents=True, exist_ok=True)
        (folder / "document.yaml").write_text(f"index: {self.alias_of(name)}\n")
        (folder / "select.sql").write_text(select)
        (folder / "index.json").write_text(json.dumps({"mappings": mappings} if mappings else {}))
        for table, query in affects.items():
            (folder / "affects" / f"{table}.sql").write_text(query)
        return folder

    def unmake(self) -> None:
        """End the daemons; drop the indices, the topic and the database; see what they have logged."""
        for daemon in self.daemons:
            if daemon.process.poll() is None:
                daemon.kill()
        with self.elasticsearch() as client:
            names = client.indices.get(index=f"{self.alias}*", expand_wildcards="all").body
            if names:
                client.indices.delete(index=",".join(names))
        self._delete_topic()
        self.execute_on_server(f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')

    def _delete_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.endpoints.kafka_bootstrap_servers})
        if self.settings.kafka.topic in admin.list_topics(timeout=DEADLINE_SECONDS).topics:
            admin.delete_topics([self.settings.kafka.topic])[self.settings.kafka.topic].result(2 * DEADLINE_SECONDS)

    @property
    def document_folder(self) -> Path:
        """The folder of the blogpost document; a test may change what is in it before it applies."""
        return self.config / "documents" / "blogpost"

    def edit_file(self, old: str, new: str, *, file: str = "select.sql") -> None:
        """Replace a part of a file of the blogpost document by another."""
        path = self.document_folder / file
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new))

    def edit_index(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change index.json of the blogpost document."""
        file = self.document_folder / "index.json"
        body = json.loads(file.read_text())
        change(body)
        file.write_text(json.dumps(body))

    def set_up(self) -> None:
        """The blog's tables, the syncer schema, and the definitions active."""
        self.sql(BLOG_SCHEMA.read_text())
        self.migrate()
        self.apply()

    def migrate(self) -> None:
        """What ``syncer migrate`` does."""
        with self.connect() as connection:
            migrations.migrate(connection)

    def apply(self) -> None:
        """What ``syncer apply`` does."""
        wait_until(self._has_topic, what="Kafka answers, and there is a topic")
        with self.connect() as connection, self.elasticsearch() as client:
            servers = self.parts(connection, client)
            decided = planned(connection, servers.indices, self.config)
            initial_loads = activate.carry_out(connection, servers.indices, decided)
            self.refresh(servers.index)
            load_all(servers, [replace(load, job=None) for load in initial_loads])

    def _has_topic(self) -> bool:
        """Make the topic, if it is not there; a broker that stands still for a while answers later."""
        if not self.uses_kafka:
            return True
        try:
            topic.ensure_topic(self.settings.kafka)
        except (KafkaException, TopicError):
            return False
        return True

    def parts(self, connection: Connection, client: Elasticsearch) -> Servers:
        """What a command works with."""
        index = Index(client, bulk_bytes_max=8_000_000)
        return Servers(settings=self.settings, connection=connection, index=index, indices=Indices(client), name="test")

    def backfill(self, document: str = "blogpost") -> None:
        """What ``syncer backfill`` does, beside no daemon."""
        with self.connect() as connection, self.index() as index:
            queue.create(connection, registry.named(connection, document)[0], JobKind.BACKFILL)
            self.refresh(index)

    def refresh(self, index: Index) -> None:
        """Write every page of every job that there is, as the job worker of a daemon does."""
        deadline = time.monotonic() + 2 * DEADLINE_SECONDS
        with self.connect() as connection, self.job_worker(index) as job_worker:
            while any(not job.is_suspended for job in model.unfinished(connection)):
                assert time.monotonic() < deadline, model.unfinished(connection)
                job_worker.run_once()

    # Parts

    def connect(self, name: str = "test") -> Connection:
        """A connection as syncer's components have them."""
        return postgres.connect(self.settings.postgres, name=name)

    def application(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection as an application has it: it knows nothing of syncer."""
        return psycopg.connect(self.dsn)

    def sql(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What an application does: one transaction with this query."""
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(query, parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

    def require_postgres(self, major: int, what: str) -> None:
        """Skip the test on a Postgres that is older than what it needs."""
        with psycopg.connect(self.dsn) as connection:
            if connection.info.server_version < major * 10_000:
                pytest.skip(f"needs {what}, and so Postgres {major}")

    def elasticsearch(self) -> Elasticsearch:
        """A plain client."""
        return open_client(self.endpoints.elasticsearch_url, request_timeout=60)

    @contextmanager
    def index(self) -> Iterator[Index]:
        """Syncer's own view of Elasticsearch."""
        with self.elasticsearch() as client:
            yield Index(client, bulk_bytes_max=8_000_000)

    @contextmanager
    def indices(self) -> Iterator[Indices]:
        """Syncer's own view of the physical indices."""
        with self.elasticsearch() as client:
            yield Indices(client)

    def writer(self, index: Index, *, connect: Callable[[], Connection] | None = None) -> closing[Writer]:
        """A writer of its own connection."""
        connect, flow = connect or self.connect, FlowControl(WorkerSettings())
        return closing(Writer(connect=connect, index=index, pause=Stop().pause, name="test", flow=flow))

    def relay(self) -> closing[Relay]:
        """A relay that turns only when the test says so, and leads if nobody else does.

        A server hears only a moment later that a connection was closed: whoever led before may be leaving yet.
        """

        def connect() -> Connection:
            if leaders_gone := [pid for connection, pid in self._led if connection.closed]:
                wait_until(lambda: not self.sql(_LEADS, leaders_gone), what="who led before is gone")
            opened = self.connect()
            self._led.append((opened, opened.info.backend_pid))
            return opened

        require_kafka()
        with self.connect() as connection:
            self._installation = registry.installation(connection)
        return closing(Relay(connect=connect, kafka=self.settings.kafka))

    def source(self, link: Link, pause: Callable[[float], None]) -> Source:
        """Where a worker of this world receives changes from."""
        if self.uses_kafka:
            return TopicSource(link=link, settings=self.settings.kafka, name="test")
        return OutboxSource(connect=self.connect, settings=self.settings.relay, pause=pause)

    def worker(self, index: Index, *, name: str = "worker-test", many: int | None = None) -> closing[Worker]:
        """A worker that turns only when the test says so; more documents than so many are many to it."""
        limits = self.settings.worker.model_copy(update={"batch_documents_max": many} if many else {})
        return closing(syncer_daemon.worker(self.settings.model_copy(update={"worker": limits}), index, name=name))

    def job_worker(self, index: Index, *, name: str = "job_worker-test") -> closing[JobWorker]:
        """A job worker that turns only when the test says so."""
        return closing(syncer_daemon.job_worker(self.settings, index, name=name))

    def daemon(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("syncer",),
        plan: Plan = AS_IT_IS,
        until: str = "daemon.started",
    ) -> Daemon:
        """Start ``syncer run``, and return once it has logged an event; another program may run it in its own way.

        Beside what the plan says, it is hasty, unless another program runs it.
        """
        if "relay" in arguments:
            require_kafka()
        log_file = self.folder / f"daemon-{len(self.daemons)}.log"
        # At the level debug, each batch has a line.
        variables = {"SYNCER_LOG_LEVEL": "debug", **self.environment, **(environment or {})}
        process: subprocess.Popen[bytes] | preloaded.Command
        if self.is_preloaded and program == ("syncer",):
            plan = replace(plan, constants={**HASTY.constants, **plan.constants})
            process = preloaded.Command(["run", *arguments], environment=variables, log_file=log_file, plan=plan)
        else:
            command = [sys.executable, "-m", *program, "run", *arguments]
            with log_file.open("wb") as log:
                process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stderr=log, stdout=log)
        daemon = Daemon(process=process, log_file=log_file)
        self.daemons.append(daemon)
        daemon.wait_for(until)
        return daemon

    def syncer(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        plan: Plan = AS_IT_IS,
        stdin: bytes = b"",
        seconds: float = 3 * DEADLINE_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a pipe, as a person sees it."""
        variables = {**self.environment, "COLUMNS": "160", "SYNCER_LOG_FORMAT": "console", **(environment or {})}
        if self.is_preloaded:
            return preloaded.run(*arguments, environment=variables, seconds=seconds, stdin=stdin, plan=plan)
        command = [sys.executable, "-m", "syncer", *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=seconds, check=False)

    def prints(self, *arguments: str, code: int = 0, **options: Any) -> str:
        """What a command prints, which `syncer` runs; it must have this exit code, and meet no error."""
        ended = self.syncer(*arguments, **options)
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert not re.search("^(Error:|Traceback)", ended.stderr, re.MULTILINE), ended.stderr
        return ended.stdout

    def dump(self, *options: str) -> str:
        """The database as pg_dump prints it."""
        program = [str(self.sandbox.postgres.bin_folder / "pg_dump"), *options, self.dsn]
        completed = subprocess.run(program, check=True, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        return completed.stdout.replace("SET transaction_timeout = 0;\n", "")  # pg_dump may be newer than the server

    def restore(self, dump: str, *, stops: bool = True) -> None:
        """Have psql load a dump, which ``stops`` at the first error, and that is one of the test."""
        program = [str(self.sandbox.postgres.bin_folder / "psql"), "-q", "-v", f"ON_ERROR_STOP={int(stops)}", self.dsn]
        subprocess.run(program, check=True, capture_output=True, text=True, input=dump, timeout=DEADLINE_SECONDS)

    # The oracle

    def expected(self, document: str = "blogpost") -> dict[str, dict[str, Any]]:
        """Every document as the plain SELECT says it, with its routing if it has one."""
        select = (self.config / "documents" / document / "select.sql").read_text().strip().removesuffix(";")
        with psycopg.connect(self.dsn, options="-c TimeZone=UTC") as connection:
            rows = connection.execute(f"SELECT d._id::text, row_to_json(d.*) FROM (\n{select}\n) AS d").fetchall()
        for _, row in rows:
            del row["_id"]  # where 1.00 has become a float
            if "_routing" in row and (routing := row.pop("_routing")) not in (None, ""):
                row["_routing"] = str(routing)
        return dict(rows)

    def held(self, document: str = "blogpost") -> dict[str, dict[str, Any]]:
        """Every document that a search finds, with its routing if it has one; a second copy is one of its own."""
        documents: dict[str, dict[str, Any]] = {}
        index = self.alias_of(document)
        with self.elasticsearch() as client:
            client.indices.refresh(index=index)
            for hit in scan(client, index=index, size=2000):
                routing = hit.get("_routing")
                name = f"{hit['_id']}, again under {routing}" if hit["_id"] in documents else hit["_id"]
                documents[name] = hit["_source"] | ({"_routing": routing} if routing else {})
        return documents

    def differences(self, *documents: str) -> list[str]:
        """How the two differ, in words: of these documents, or of all."""
        differences = []
        for document in documents or self.documents:
            expected, indexed = self.expected(document), self.held(document)
            differences += [
                f"{id_}: postgres {expected.get(id_)} elasticsearch {indexed.get(id_)}"
                for id_ in sorted(expected.keys() | indexed.keys())
                if expected.get(id_) != indexed.get(id_)
            ]
        return differences

    def wait_until_level(self, *, seconds: float = DEADLINE_SECONDS) -> None:
        """Return once every document equals its SELECT; fail the test if that does not come."""
        wait_until(
            lambda: not self.differences(),
            what="every document equals its SELECT",
            seconds=seconds,
            detail=lambda: "\n".join(self.differences()[:10]) + self.last_words(),
        )

    def last_words(self) -> str:
        """The ends of the daemons' logs."""
        return "".join(
            f"\n--- {daemon.log_file.name}\n{daemon.log_file.read_text()[-3000:]}" for daemon in self.daemons
        )

    def is_handled(self) -> bool:
        """Whether every change that was read from the outbox is handled."""
        with self.connect() as connection:
            return progress.handled(connection) == progress.newest(connection)
