"""Whatever a stranger does wrong: one error, in words, with what to do about it, and nothing half done."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pytest

from syncer.apply import activate
from syncer.base import error_policy
from syncer.sandbox import Endpoints, Sandbox
from tests.support import preloaded
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, World, planned

MORE_TABLES = """
CREATE TABLE keyless (id bigint NOT NULL);
CREATE VIEW a_view AS SELECT id, now() AS seen FROM posts;
CREATE MATERIALIZED VIEW a_summary AS SELECT id FROM posts;
CREATE TABLE parted (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parent (id bigint PRIMARY KEY);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
CREATE FOREIGN TABLE a_foreign (id bigint) SERVER nowhere;
CREATE FUNCTION comments_of(bigint) RETURNS bigint LANGUAGE sql STABLE
    AS 'SELECT count(*) FROM public.comments WHERE post_id = $1';
"""
BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long');
INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'Alice White', 'More'), (2, 2, 'Bob', 'Less');
"""
SECRET = "s3cr3t-w0rd"  # noqa: S105 - what no output may show
DOWN_SECONDS = 60
"""How long a command may look for a server that is not there; librdkafka's own patience is 15 seconds, and to begin
takes some, too, on a machine that has much to do."""
PATIENCE_SECONDS = 3 * DEADLINE_SECONDS
"""How long a command may take that has its servers."""


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A mistake in a document's folder.

    Args:
        says: What the error and its hint must mention.
        files: What is written into which file; None removes it.
    """

    says: tuple[str, ...]
    files: Mapping[str, str | None] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Make the mistake."""
        for name, text in self.files.items():
            file = folder / name
            if text is None:
                file.unlink()
            else:
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, encoding="utf-8")


def bad_select(text: str, *says: str) -> Bad:
    """A mistake in a SELECT that reads its root only."""
    return Bad(files={"select.sql": text}, says=("select.sql", *says))


def bad_relation(name: str, *says: str) -> Bad:
    """A SELECT from something that syncer cannot capture."""
    return bad_select(f"SELECT x.id AS _id FROM {name} AS x", name, *says)


def bad_file(name: str, text: str | None, *says: str) -> Bad:
    """A mistake in one file."""
    return Bad(files={name: text}, says=(name, *says))


SELECTS = {
    "does_not_parse": bad_select(
        "SELECT p.id AS _id,\n  p.title AS\nFROM posts AS p",
        'at or near "posts"',
        "\n  line 3: FROM posts AS p\n               ^",
    ),
    "ends_too_early": bad_select("SELECT p.id AS _id\nFROM", "end of input", "\n  line 2: FROM\n              ^"),
    "is_empty": bad_select(" ;\n", "empty"),
    "is_a_comment": bad_select("-- to be written", "one SELECT"),
    "is_missing": Bad(files={"select.sql": None}, says=("select.sql is missing",)),
    "has_no_id": bad_select("SELECT p.id FROM posts AS p", "no column _id"),
    "names_no_table": bad_select(
        "SELECT p.id AS _id\nFROM postings AS p",
        '"postings" does not exist',
        "\n  line 2: FROM postings AS p\n" + " " * 15 + "^",
    ),
    "names_no_column": bad_select(
        "SELECT p.id AS _id,\n  p.titel\nFROM posts AS p", "p.titel does not exist", "line 2:   p.titel", '"p.title"'
    ),
    "is_two": bad_select("SELECT p.id AS _id FROM posts AS p; SELECT 1", "one SELECT", "statement"),
    "drops_a_table": bad_select("SELECT p.id AS _id FROM posts AS p; DROP TABLE posts;", "one SELECT", "statement"),
    "is_a_delete": bad_select("DELETE FROM posts RETURNING id AS _id", "one SELECT"),
    "deletes_within": bad_select("WITH d AS (DELETE FROM posts RETURNING id) SELECT id AS _id FROM d", "one SELECT"),
    "makes_a_table": bad_select("SELECT id AS _id INTO copied FROM posts", "one SELECT"),
    "has_a_parameter": bad_select("SELECT p.id AS _id FROM posts AS p WHERE p.id = $1", "$1"),
    "locks": bad_select("SELECT p.id AS _id, p.title FROM posts AS p FOR UPDATE", "FOR UPDATE"),
    "has_an_unnamed_column": bad_select("SELECT p.id AS _id, p.title || p.body FROM posts AS p", "no name", "AS"),
    "has_unnamed_columns": bad_select("SELECT p.id AS _id, p.title || p.body, 1 + 1 FROM posts AS p", "no name", "AS"),
    "has_a_reserved_field": bad_select("SELECT p.id AS _id, p.title AS _source FROM posts AS p", "_source", "begin"),
    "has_a_column_twice": bad_select("SELECT p.id AS _id, p.title, p.title FROM posts AS p", '"title"', "once"),
    "reads_a_keyless_table": Bad(
        files={"select.sql": "SELECT k.id AS _id FROM keyless AS k"},
        says=("public.keyless", "primary key", "ALTER TABLE"),
    ),
    "reads_a_clock_in_a_view": bad_select("SELECT x.id AS _id FROM public.a_view AS x", "now()", "without a commit"),
    "reads_a_materialized_view": bad_relation("public.a_summary", "a materialized view"),
    "reads_an_inheritance_parent": bad_relation("public.parent", "inherit"),
    "reads_a_foreign_table": bad_relation("public.a_foreign", "a foreign table"),
    "reads_a_catalogue_table": bad_select("SELECT c.oid AS _id FROM pg_class AS c", "pg_class", "catalogue"),
    "reads_a_catalogue_view": bad_select(
        "SELECT t.tablename AS _id FROM pg_tables AS t", "pg_catalog.pg_tables", "catalogue"
    ),
    "reads_a_catalogue_aside": bad_select(
        "SELECT p.id AS _id, (SELECT count(*) FROM pg_class) AS tables FROM posts AS p", "pg_class", "catalogue"
    ),
    "reads_no_table": bad_select("SELECT n AS _id FROM generate_series(1, 3) AS n", "no table"),
    "calls_a_function_that_reads": bad_select(
        "SELECT p.id AS _id, comments_of(p.id) AS comments FROM posts AS p", "comments_of"
    ),
}

ROUTINGS = {
    "deletes_are_forgotten_early": bad_file("index.json", '{"settings": {"index.gc_deletes": "1s"}}', "gc_deletes"),
    "routing_is_required": Bad(
        files={"index.json": '{"mappings": {"_routing": {"required": true}}}'},
        says=("select.sql has no column _routing", "requires a routing", "AS _routing"),
    ),
    "children_have_no_routing": Bad(
        files={"index.json": '{"mappings": {"properties": {"is": {"type": "join", "relations": {"a": "b"}}}}}'},
        says=("select.sql has no column _routing", "is in index.json is a join field", "parent's shard"),
    ),
}
REFUSED_BY_ELASTICSEARCH = {
    "mapping_is_refused": Bad(
        files={"index.json": '{"mappings": {"properties": {"title": {"type": "txt"}}}}'},
        says=("index.json of blogpost", "title", "txt"),
    ),
    "setting_is_refused": Bad(
        files={"index.json": '{"settings": {"number_of_shads": 1}}'},
        says=("index.json of blogpost", "number_of_shads"),
    ),
}

USERS = "affects/users.sql"
AFFECTS = {
    "is_missing": bad_file(
        "select.sql",
        "SELECT p.id AS _id,\n  (SELECT count(*) FROM users) AS users\nFROM posts AS p",
        "public.users",
        USERS,
        "%(rows)s",
    ),
    "has_rows_in_a_comment": bad_file(USERS, "SELECT p.id AS _id FROM posts AS p -- %(rows)s", "FROM", "%(rows)s"),
    "has_no_id": bad_file(USERS, "SELECT p.id FROM posts AS p JOIN %(rows)s AS c ON c.id = p.user_id", "_id"),
    "does_not_parse": bad_file(USERS, "SELECT c.id AS _id\nFORM %(rows)s AS c", '"FORM"', "line 2", "^"),
    "names_no_column": bad_file(USERS, "SELECT c.idd AS _id FROM %(rows)s AS c", "c.idd does not exist", "line 1"),
    "is_two": bad_file(USERS, "SELECT c.id AS _id FROM %(rows)s AS c; SELECT 1", "one SELECT", "statement"),
    "has_an_id_of_another_type": bad_file(USERS, "SELECT c.born AS _id FROM %(rows)s AS c", "date", "bigint"),
    "is_of_a_table_that_is_not_read": bad_file("affects/tags.sql", "SELECT c.id AS _id FROM %(rows)s AS c", "tags"),
    "is_of_no_table": bad_file("affects/my table.sql", "SELECT c.id AS _id FROM %(rows)s AS c", "my table"),
}


@pytest.fixture(scope="module")
def base(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with the blog's tables and some odd ones, the syncer schema, and nothing active."""
    world = World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("base"))
    world.make()
    try:
        world.sql(BLOG_SCHEMA.read_text())
        world.sql(MORE_TABLES)
        world.migrate()
        yield world
    finally:
        world.unmake()


@pytest.fixture
def draft(base: World, tmp_path: Path) -> Iterator[World]:
    """The same world with a config folder of its own; what a test puts active by mistake is taken out again."""
    made = dataclasses.replace(base, folder=tmp_path, daemons=[])
    shutil.copytree(base.config, made.config)
    yield made
    if orphan_indices(made):
        made.sql("DELETE FROM syncer.document; DELETE FROM syncer.capture")
        for (function,) in made.sql("SELECT oid::regprocedure::text FROM pg_proc WHERE proname LIKE 'capture\\_%'"):
            made.sql(f"DROP FUNCTION {function} CASCADE")
        with made.elasticsearch() as client:
            for name in client.indices.get(index=f"{made.alias}-*").body:
                client.indices.delete(index=name)


def orphan_indices(world: World) -> list[str]:
    """What is active, though nothing should be: documents, triggers, indices."""
    documents = world.sql("SELECT 'document ' || name FROM syncer.document")
    triggers = world.sql("SELECT 'trigger on ' || tgrelid::regclass FROM pg_trigger WHERE tgname LIKE 'syncer\\_%'")
    with world.elasticsearch() as client:
        indices = client.indices.get(index=f"{world.alias}-*").body
    return [row[0] for row in documents + triggers] + [f"index {name}" for name in indices]


def put_in_force(world: World) -> None:
    """What ``syncer apply`` does before its first load."""
    with world.connect() as connection, world.indices() as indices:
        activate.carry_out(connection, indices, planned(connection, indices, world.config))


def refusal(world: World) -> str:
    """What apply says when it refuses the definitions of this world."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - what it must be is said in the next line
        put_in_force(world)
    said = error_policy.explain(raised.value)
    assert said is not None, f"a stranger would see a traceback: {raised.value!r}"
    assert said.hint, f"no hint: {said.message}"
    return f"{said.message}\n{said.hint}"


REFUSED = {
    f"{kind}_{name}": bad
    for kind, cases in (("select", SELECTS), ("index", ROUTINGS), ("affects", AFFECTS))
    for name, bad in cases.items()
}


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_definition_is_refused(draft: World, bad: Bad) -> None:
    """What cannot be followed is refused, with what is wrong where, and nothing is active."""
    bad.write(draft.document_folder)
    said = refusal(draft)
    assert [words for words in bad.says if words not in said] == [], said
    assert orphan_indices(draft) == []


def test_the_alias_cannot_be_an_index(draft: World) -> None:
    """An index by the name of the alias is left alone, and said to be in the way."""
    with draft.elasticsearch() as client:
        client.indices.create(index=draft.alias)
        try:
            said = refusal(draft)
        finally:
            client.indices.delete(index=draft.alias)
    assert f"{draft.alias} is an index" in said
    assert orphan_indices(draft) == []


def test_the_alias_cannot_be_another_database_s(draft: World, loaded: World) -> None:
    """An alias that another database's syncer feeds is left alone."""
    (draft.document_folder / "document.yaml").write_text(f"index: {loaded.alias}\n")
    said = refusal(draft)
    assert f"{loaded.alias}-000001" in said
    assert "not this database's" in said
    with loaded.elasticsearch() as client:
        assert list(client.indices.get(index=loaded.alias).body) == [f"{loaded.alias}-000001"]


# Through the command line


def command(
    world: World, *arguments: str, environment: Mapping[str, str] | None = None, seconds: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a command where nobody can answer a question."""
    given = {**world.environment, "SYNCER_LOG_FORMAT": "console", **(environment or {})}
    return execute(given, *arguments, seconds=seconds)


def execute(
    environment: Mapping[str, str], *arguments: str, seconds: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a command with this environment and no other."""
    return preloaded.run(*arguments, environment=environment, seconds=seconds)


def explained(done: subprocess.CompletedProcess[str], *says: str, code: int = 1) -> str:
    """What a command said; it must have failed, with one error in words that mentions all of this."""
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert "Traceback" not in said
    assert done.stderr.count("Error") == 1, said
    assert [words for words in says if words not in done.stderr] == [], said
    return done.stderr


CLASSES = {
    "select": SELECTS["does_not_parse"],
    **REFUSED_BY_ELASTICSEARCH,
}


@pytest.mark.parametrize("bad", CLASSES.values(), ids=CLASSES.keys())
def test_apply_prints_the_error_and_leaves(draft: World, bad: Bad) -> None:
    """``syncer apply`` prints what is wrong and how to fix it, and exits with 1."""
    bad.write(draft.document_folder)
    said = explained(command(draft, "apply", "--yes"), *bad.says)
    assert str(draft.document_folder) in said or "blogpost" in said
    assert orphan_indices(draft) == []


def test_a_fixed_width_id_is_whole(empty_world: World) -> None:
    """An id of type char(n) is not cut to its first character."""
    empty_world.sql(
        "CREATE TABLE countries (code char(3) PRIMARY KEY, name text);"
        "INSERT INTO countries VALUES ('fra', 'France'), ('fin', 'Finland')"
    )
    (empty_world.document_folder / "select.sql").write_text("SELECT c.code AS _id, c.name AS title FROM countries AS c")
    empty_world.migrate()
    empty_world.apply()
    assert len(empty_world.expected()) == 2
    assert empty_world.differences() == []


def test_an_id_that_comes_twice_is_explained_and_can_be_fixed(empty_world: World) -> None:
    """A join that multiplies documents is refused before it is active; the fixed SELECT is then applied."""
    empty_world.sql(BLOG_SCHEMA.read_text() + BLOG)
    empty_world.migrate()
    folder = empty_world.document_folder
    shutil.copytree(folder, empty_world.folder / "good")
    (folder / "select.sql").write_text(
        "SELECT p.id AS _id, c.name AS title FROM posts AS p JOIN comments AS c ON c.post_id = p.id"
    )
    explained(command(empty_world, "apply", "--yes"), "_id 2 more than once", "aggregate", "syncer apply")
    shutil.rmtree(folder)
    shutil.copytree(empty_world.folder / "good", folder)
    done = command(empty_world, "apply", "--yes")
    assert done.returncode == 0, done.stderr
    assert empty_world.differences() == []


# What a backfill is asked for


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ids", "-"), ("Line 2", "512 bytes")),
        (("--where", "1=1) UNION SELECT 5 WHERE (true"), ("condition", "syntax error")),
    ],
)
def test_a_backfill_of_nonsense_is_refused(loaded: World, options: tuple[str, ...], says: tuple[str, ...]) -> None:
    """Nothing is made of it, and it says which word was wrong."""
    given = b"1\n" + 600 * b"x" + b"\n"
    done = preloaded.run(
        "backfill", "blogpost", *options, environment=loaded.environment, seconds=PATIENCE_SECONDS, stdin=given
    )
    explained(done, *says)
    assert loaded.sql("SELECT id FROM syncer.job WHERE kind <> 'initial_load'") == []


# A second apply


def test_what_cannot_change_in_place_gets_a_new_index(world: World) -> None:
    """A field's type, which an index keeps for life: apply says why, and builds a new index."""
    before = world.index_of()
    mapping = world.document_folder / "index.json"
    mapping.write_text(mapping.read_text().replace('"title": { "type": "text" }', '"title": { "type": "keyword" }'))
    world.sql(BLOG)
    done = command(world, "apply", "--yes")
    assert done.returncode == 0, done.stderr
    for word in ("title", "text", "keyword", "needs a new index", "is searched in", "is dropped"):
        assert word in done.stdout
    assert world.index_of() != before
    assert world.differences() == []


def test_what_can_change_in_place_does(world: World) -> None:
    """A setting, and whatever else ``mappings`` may hold, also what the client has no word for."""
    more = '"_source": {}, "date_detection": false, "dynamic_templates": [], "subobjects": true'
    mapping = world.document_folder / "index.json"
    text = mapping.read_text().replace('"dynamic": "strict"', f'"dynamic": "strict", {more}')
    mapping.write_text(text.replace('"number_of_shards": 1', '"number_of_shards": 1, "refresh_interval": "7s"'))
    world.apply()
    assert world.sql("SELECT revision FROM syncer.document") == [(2,)]
    with world.elasticsearch() as client:
        found = client.indices.get(index=world.alias, flat_settings=True).body[f"{world.alias}-000001"]
    assert found["mappings"]["date_detection"] is False
    assert found["settings"]["index.refresh_interval"] == "7s"


def test_the_index_of_a_document_cannot_be_renamed(world: World) -> None:
    """A document that is active keeps its index; how to get another one is said."""
    (world.document_folder / "document.yaml").write_text(f"index: {world.alias}-other\n")
    explained(command(world, "apply", "--yes"), world.alias, f"{world.alias}-other", "new document folder")


# Settings


def test_missing_settings_are_named(tmp_path: Path) -> None:
    """All that are missing are named at once, and what starts servers to try it on."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("SYNCER_")}
    done = execute({**bare, "SYNCER_CONFIG": str(tmp_path)}, "status")
    explained(done, "SYNCER_POSTGRES_DSN", "SYNCER_ELASTICSEARCH_URL", "sandbox")


# Servers that do not answer


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine where nothing listens, nor begins to meanwhile, since it is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


DOWN = {
    "Postgres": {"SYNCER_POSTGRES_DSN": "postgresql://syncer:{secret}@127.0.0.1:{port}/blog"},
    "Elasticsearch": {"SYNCER_ELASTICSEARCH_URL": "http://elastic:{secret}@127.0.0.1:{port}"},
    "Kafka": {
        "SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:{port}",
        "SYNCER_KAFKA_PROPERTIES": '{{"sasl.password": "{secret}"}}',
    },
}


@pytest.mark.parametrize(
    ("server", "line"),
    [
        ("Postgres", "migrate"),
        ("Postgres", "plan"),
        ("Elasticsearch", "apply --yes"),
        ("Elasticsearch", "verify"),
        ("Kafka", "apply --yes"),
    ],
)
def test_a_server_is_down(draft: World, closed_port: int, server: str, line: str) -> None:
    """A command ends with one error that says so, and which setting to look at; nothing is changed."""
    down = {name: value.format(secret=SECRET, port=closed_port) for name, value in DOWN[server].items()}
    done = command(draft, *line.split(), environment=down, seconds=DOWN_SECONDS)
    said = explained(done, f"{server} cannot be reached", next(iter(down)))
    assert SECRET not in done.stdout + said
    assert orphan_indices(draft) == []


@pytest.mark.parametrize(
    ("variable", "address", "said"),
    [
        ("SYNCER_POSTGRES_DSN", "postgresql://syncer:{secret}@127.0.0.1:{port}/blog", "Postgres is down"),
        ("SYNCER_ELASTICSEARCH_URL", "http://elastic:{secret}@127.0.0.1:{port}", "Elasticsearch is down"),
    ],
)
def test_status_names_the_server_that_is_down(
    draft: World, closed_port: int, variable: str, address: str, said: str
) -> None:
    """In one sentence, with its address; what the others say is shown."""
    down = {variable: address.format(secret=SECRET, port=closed_port)}
    done = command(draft, "status", environment=down, seconds=DOWN_SECONDS)
    shown(done, f"{said}: connection refused at 127.0.0.1:{closed_port}")
    assert ("No daemon is running" in done.stdout) == (variable != "SYNCER_POSTGRES_DSN")


def shown(done: subprocess.CompletedProcess[str], *says: str) -> None:
    """`syncer status` says this where it says everything; its exit code tells that not all is well."""
    assert done.returncode == 1, done.stderr
    for words in says:
        assert words in done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_property_of_kafka_is_named(draft: World) -> None:
    """By its name, and by the setting that has it."""
    done = command(draft, "apply", "--yes", environment={"SYNCER_KAFKA_PROPERTIES": '{"no.such": 1}'})
    explained(done, "no.such", "kafka.properties")
    assert orphan_indices(draft) == []


def test_a_server_that_is_not_elasticsearch(draft: World) -> None:
    """Another server at the address of Elasticsearch is noticed."""
    elsewhere = {"SYNCER_ELASTICSEARCH_URL": f"http://{draft.endpoints.kafka_bootstrap_servers}"}
    done = command(draft, "apply", "--yes", environment=elsewhere, seconds=DOWN_SECONDS)
    explained(done, "Elasticsearch", "SYNCER_ELASTICSEARCH_URL")
    shown(command(draft, "status", environment=elsewhere, seconds=DOWN_SECONDS), "Elasticsearch is not usable")


@pytest.mark.parametrize(
    ("dsn", "says", "debug"),
    [
        ("postgresql://nobody_of_this_name:{secret}@{server}/{name}", "nobody_of_this_name", ("--debug",)),
        ("postgresql://postgres:{secret}@{server}/no_such_database", "no_such_database", ()),
    ],
    ids=["unknown_role", "unknown_database"],
)
def test_a_login_that_postgres_refuses(draft: World, dsn: str, says: str, debug: tuple[str, ...]) -> None:
    """A refused login is said as the server says it, and the password is shown nowhere, not even in a traceback."""
    server = draft.endpoints.postgres_dsn.rsplit("@", 1)[1].split("/", 1)[0]
    refused = {"SYNCER_POSTGRES_DSN": dsn.format(secret=SECRET, server=server, name=draft.name)}
    shown(command(draft, "status", environment=refused), says, "SYNCER_POSTGRES_DSN")
    done = command(draft, *debug, "jobs", "list", environment=refused)
    if not debug:
        explained(done, says, "SYNCER_POSTGRES_DSN")
    assert done.returncode == 1
    assert says in done.stderr
    assert SECRET not in done.stdout + done.stderr


@pytest.fixture
def password_port() -> Iterator[int]:
    """A port where something asks for a password as Postgres does, and refuses it; the sandbox's asks nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=refuse_passwords, args=(listener,), name="refuses-passwords", daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def refuse_passwords(listener: socket.socket) -> None:
    """Answer logins, one after the other, until the listener is shut down."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            with contextlib.suppress(ConnectionError, struct.error), client, client.makefile("rb") as received:
                refuse_password(client, received)


def refuse_password(client: socket.socket, received: BinaryIO) -> None:
    """No encryption; then a password, in clear text; then FATAL 28P01."""
    length, request = struct.unpack("!ii", received.read(8))
    while request in (80877103, 80877104):
        client.sendall(b"N")
        length, request = struct.unpack("!ii", received.read(8))
    received.read(length - 8)
    client.sendall(struct.pack("!cii", b"R", 8, 3))
    _, length = struct.unpack("!ci", received.read(5))
    received.read(length - 4)
    said = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed\0\0"
    client.sendall(struct.pack("!ci", b"E", len(said) + 4) + said)


def test_a_wrong_password_is_never_shown(draft: World, password_port: int) -> None:
    """A password that is refused is said to be refused, and not shown; the daemon does not wait for it to change."""
    wrong = {"SYNCER_POSTGRES_DSN": f"postgresql://syncer:{SECRET}@127.0.0.1:{password_port}/blog"}
    done = command(draft, "run", environment=wrong, seconds=DOWN_SECONDS)
    said = explained(done, "password authentication failed", "SYNCER_POSTGRES_DSN")
    assert SECRET not in done.stdout + said


# The schema and privileges


def test_a_database_without_the_schema(empty_world: World) -> None:
    """A database that was never migrated is said to be one, and how to migrate it."""
    shown(command(empty_world, "status"), "no syncer schema", "syncer migrate")
    for line in ("run", "apply --yes"):
        explained(command(empty_world, *line.split()), "no syncer schema", "syncer migrate")


def test_a_database_of_a_newer_syncer(draft: World) -> None:
    """A database that a newer syncer has migrated is left alone."""
    draft.sql("INSERT INTO syncer.migration (name, checksum) VALUES ('9999.from-the-future', 'x')")
    try:
        shown(command(draft, "status"), "another version of syncer", "9999.from-the-future", "Install")
        explained(command(draft, "migrate"), "another version of syncer", "9999.from-the-future", "Install")
    finally:
        draft.sql("DELETE FROM syncer.migration WHERE name = '9999.from-the-future'")


@pytest.fixture
def stranger(empty_world: World) -> Iterator[str]:
    """A role without any privilege in a world that has the blog's tables."""
    role = f"{empty_world.name}_stranger"
    empty_world.sql(BLOG_SCHEMA.read_text() + BLOG)
    empty_world.sql(f"CREATE ROLE {role} LOGIN")
    yield role
    empty_world.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def as_role(world: World, role: str) -> dict[str, str]:
    """The setting that makes a command log in as this role."""
    address = world.dsn.split("@", 1)[1]
    return {"SYNCER_POSTGRES_DSN": f"postgresql://{role}@{address}"}


def test_a_role_that_may_not_create_the_schema(empty_world: World, stranger: str) -> None:
    """Without the privilege to create a schema, migrate says which is lacking, and leaves nothing."""
    said = explained(
        command(empty_world, "migrate", environment=as_role(empty_world, stranger)), "permission denied", "privilege"
    )
    assert "schemas" in said
    assert empty_world.sql("SELECT to_regnamespace('syncer')") == [(None,)]


def test_a_role_that_may_not_create_triggers(empty_world: World, stranger: str) -> None:
    """Without owning the tables, apply says so and puts nothing active; the owner's apply then works."""
    empty_world.migrate()
    empty_world.sql(
        f"GRANT USAGE, CREATE ON SCHEMA syncer TO {stranger}; GRANT ALL ON ALL TABLES IN SCHEMA syncer TO {stranger};"
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA syncer TO {stranger};"
        f"GRANT SELECT ON users, posts, comments TO {stranger}"
    )
    done = command(empty_world, "apply", "--yes", environment=as_role(empty_world, stranger))
    explained(done, "permission denied", "owns the tables")
    assert empty_world.sql("SELECT name FROM syncer.document") == []
    mapping = empty_world.document_folder / "index.json"
    mapping.write_text(mapping.read_text().replace('"title": { "type": "text" }', '"title": { "type": "keyword" }'))
    done = command(empty_world, "apply", "--yes")
    assert done.returncode == 0, done.stderr
    with empty_world.elasticsearch() as client:
        found = client.indices.get_mapping(index=empty_world.alias).body[f"{empty_world.alias}-000001"]
    assert found["mappings"]["properties"]["title"]["type"] == "keyword"
    assert empty_world.differences() == []


def test_a_role_that_may_not_read_the_schema(empty_world: World, stranger: str) -> None:
    """A role that lacks the schema's privileges is told so, not that there is no schema."""
    empty_world.migrate()
    done = command(empty_world, "status", environment=as_role(empty_world, stranger))
    shown(done, "permission denied", "privilege", "syncer migrate`")


# Words that a command does not know

NOT_THERE = {
    "apply blogpots": ("There is no document blogpots", "blogpost"),
    "jobs list --document nope": ("nope", "blogpost"),
    "index abort blogpost": ("No index of blogpost is being built",),
    "verify nope": ("nope", "blogpost"),
    "backfill nope": ("nope", "blogpost"),
}


@pytest.mark.parametrize("line", NOT_THERE)
def test_what_is_not_there_is_named(loaded: World, line: str) -> None:
    """So is what is there instead."""
    explained(command(loaded, *line.split(), environment={"COLUMNS": "160"}), *NOT_THERE[line])


@pytest.fixture(scope="module")
def loaded(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with the blogpost document active, and a change of its definition that is not applied."""
    world = World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("loaded"))
    world.make()
    try:
        world.set_up()
        (world.document_folder / "index.json").write_text('{"mappings": {"properties": {"more": {"type": "long"}}}}')
        yield world
    finally:
        world.unmake()


def test_without_an_answer_nothing_changes(loaded: World) -> None:
    """Without a terminal, apply shows its plan, asks for --yes, and leaves everything as it was."""
    done = command(loaded, "apply")
    explained(done, "Confirmation required", "--yes", code=2)
    assert "blogpost" in done.stdout
    assert loaded.sql("SELECT revision FROM syncer.document") == [(1,)]
