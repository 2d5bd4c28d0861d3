"""Whatever a newcomer does wrong: one error, in words, with what to do about it, and nothing half done."""

from __future__ import annotations

import dataclasses
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncer.apply import activate
from syncer.base import error_policy
from tests.support.world import BLOG_SCHEMA, World, planned

MORE_TABLES = """
CREATE VIEW a_view AS SELECT id, now() AS seen FROM posts;
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
"""How long a command may look for a server that is not there; librdkafka's own patience is 15 seconds."""

SELECTS: dict[str, tuple[str, ...]] = {
    "SELECT p.id AS _id,\n  p.title AS\nFROM posts AS p": (
        'at or near "posts"',
        "\n  line 3: FROM posts AS p\n               ^",
    ),
    "SELECT p.id AS _id\nFROM": ("end of input", "\n  line 2: FROM\n              ^"),
    " ;\n": ("empty",),
    "-- to be written": ("one SELECT",),
    "SELECT p.id FROM posts AS p": ("no column _id",),
    "SELECT p.id AS _id\nFROM postings AS p": (
        '"postings" does not exist',
        "\n  line 2: FROM postings AS p\n" + " " * 15 + "^",
    ),
    "SELECT p.id AS _id,\n  p.titel\nFROM posts AS p": (
        "p.titel does not exist",
        "line 2:   p.titel",
        '"p.title"',
    ),
    "SELECT p.id AS _id FROM posts AS p; SELECT 1": ("one SELECT", "statement"),
    "SELECT p.id AS _id FROM posts AS p; DROP TABLE posts;": ("one SELECT", "statement"),
    "DELETE FROM posts RETURNING id AS _id": ("one SELECT",),
    "WITH d AS (DELETE FROM posts RETURNING id) SELECT id AS _id FROM d": ("one SELECT",),
    "SELECT id AS _id INTO copied FROM posts": ("one SELECT",),
    "SELECT p.id AS _id FROM posts AS p WHERE p.id = $1": ("$1",),
    "SELECT p.id AS _id, p.title FROM posts AS p FOR UPDATE": ("FOR UPDATE",),
    "SELECT p.id AS _id, p.title || p.body FROM posts AS p": ("no name", "AS"),
    "SELECT p.id AS _id, p.title AS _source FROM posts AS p": ("_source", "begin"),
    "SELECT p.id AS _id, p.title, p.title FROM posts AS p": ('"title"', "once"),
    "SELECT x.id AS _id FROM public.a_view AS x": ("now()", "without a commit"),
    "SELECT p.id AS _id, (SELECT count(*) FROM pg_class) AS tables FROM posts AS p": ("pg_class", "catalogue"),
    "SELECT n AS _id FROM generate_series(1, 3) AS n": ("no table",),
    "SELECT p.id AS _id, comments_of(p.id) AS comments FROM posts AS p": ("comments_of",),
    "SELECT p.id AS _id,\n  (SELECT count(*) FROM users) AS users\nFROM posts AS p": (
        "public.users",
        "affects/users.sql",
        "%(rows)s",
    ),
}
BODIES: dict[str, tuple[str, ...]] = {
    '{"settings": {"index.gc_deletes": "1s"}}': ("index.json", "gc_deletes"),
    '{"mappings": {"_routing": {"required": true}}}': ("select.sql has no column _routing", "AS _routing"),
    '{"mappings": {"properties": {"is": {"type": "join", "relations": {"a": "b"}}}}}': (
        "select.sql has no column _routing",
        "is in index.json is a join field",
        "parent's shard",
    ),
}
AFFECTS: dict[str, tuple[str, ...]] = {
    "SELECT p.id AS _id FROM posts AS p -- %(rows)s": ("FROM", "%(rows)s"),
    "SELECT p.id FROM posts AS p JOIN %(rows)s AS c ON c.id = p.user_id": ("_id",),
    "SELECT c.id AS _id\nFORM %(rows)s AS c": ('"FORM"', "line 2", "^"),
    "SELECT c.idd AS _id FROM %(rows)s AS c": ("c.idd does not exist", "line 1"),
    "SELECT c.id AS _id FROM %(rows)s AS c; SELECT 1": ("one SELECT", "statement"),
    "SELECT c.born AS _id FROM %(rows)s AS c": ("date", "bigint"),
}
ANY_ROW = "SELECT c.id AS _id FROM %(rows)s AS c"
USERS = "affects/users.sql"
REFUSED: list[tuple[str, str | None, tuple[str, ...]]] = [
    *(("select.sql", text, ("select.sql", *words)) for text, words in SELECTS.items()),
    ("select.sql", None, ("select.sql is missing",)),
    *(("index.json", text, words) for text, words in BODIES.items()),
    *((USERS, text, (USERS, *words)) for text, words in AFFECTS.items()),
    ("affects/tags.sql", ANY_ROW, ("affects/tags.sql", "tags")),
    ("affects/my table.sql", ANY_ROW, ("affects/my table.sql", "Rename the file after a table of the SELECT")),
    ("affects/a.b.c.sql", ANY_ROW, ("affects/a.b.c.sql", "Rename the file after a table of the SELECT")),
    ("affects/f(a.b).sql", ANY_ROW, ("affects/f(a.b).sql", "Rename the file after a table of the SELECT")),
]
"""A file of the definition, what is in it (None: it is missing), and parts of the error and its hint."""


def write(world: World, file: str, text: str | None) -> None:
    """Change a file of the definition."""
    path = world.document_folder / file
    if text is None:
        path.unlink()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def base(module_world: World) -> World:
    """A world with the blog's tables and some odd ones, the syncer schema, and nothing active."""
    module_world.sql(BLOG_SCHEMA.read_text())
    module_world.sql(MORE_TABLES)
    module_world.migrate()
    return module_world


@pytest.fixture
def draft(base: World, tmp_path: Path) -> Iterator[World]:
    """The same world with a config folder of its own; nothing may be active afterwards."""
    copy = dataclasses.replace(base, folder=tmp_path, daemons=[])
    shutil.copytree(base.config, copy.config)
    yield copy
    assert copy.sql("SELECT name FROM syncer.document") == []
    assert copy.sql("SELECT tgrelid::regclass FROM pg_trigger WHERE tgname LIKE 'syncer\\_%'") == []
    with copy.elasticsearch() as client:
        assert list(client.indices.get(index=f"{copy.alias}-*").body) == []


@pytest.fixture(scope="module")
def loaded(shared_world: World) -> World:
    """A world with the blogpost document active, and a change of its definition that is not applied."""
    more = '{"mappings": {"properties": {"more": {"type": "long"}}}}'
    (shared_world.document_folder / "index.json").write_text(more)
    return shared_world


def refusal(world: World) -> str:
    """The error and the hint with which apply refuses the definitions of this world."""
    with pytest.raises(Exception) as raised, world.connect() as connection, world.indices() as indices:  # noqa: PT011
        activate.carry_out(connection, indices, planned(connection, indices, world.config))
    error = error_policy.explain(raised.value)
    assert error is not None, f"a user would see a traceback: {raised.value!r}"
    assert error.hint, f"no hint: {error.message}"
    return f"{error.message}\n{error.hint}"


@pytest.mark.parametrize(("file", "text", "words"), REFUSED, ids=lambda value: str(value)[:50] if value else "-")
def test_a_bad_definition_is_refused(draft: World, file: str, text: str | None, words: tuple[str, ...]) -> None:
    """What cannot be followed is refused, with what is wrong where, and nothing is active."""
    write(draft, file, text)
    shown = refusal(draft)
    assert [word for word in words if word not in shown] == [], shown


def test_the_alias_cannot_be_an_index_or_another_database_s(draft: World, loaded: World) -> None:
    """What has the name is left alone."""
    with draft.elasticsearch() as client:
        client.indices.create(index=draft.alias)
        try:
            assert f"{draft.alias} is an index" in refusal(draft)
        finally:
            client.indices.delete(index=draft.alias)
        write(draft, "document.yaml", f"index: {loaded.alias}\n")
        shown = refusal(draft)
        assert f"{loaded.alias}-000001" in shown
        assert "not this database's" in shown
        assert list(client.indices.get(index=loaded.alias).body) == [f"{loaded.alias}-000001"]


# Through the command line


def explained(world: World, line: str, *words: str, code: int = 1, **options: Any) -> str:
    """What a command printed; it must have failed, with one error in words that has all of these parts.

    No terminal can answer a question of it.
    """
    ended = world.syncer(*line.split(), **options)
    printed = ended.stdout + ended.stderr
    assert ended.returncode == code, printed
    assert "Traceback" not in printed
    assert SECRET not in printed
    assert ended.stderr.count("Error") == 1, printed
    assert [word for word in words if word not in ended.stderr] == [], printed
    return ended.stderr


def shown(world: World, *words: str, **options: Any) -> str:
    """What ``syncer status`` prints; it has these parts, and its exit code tells that not all is well."""
    ended = world.syncer("status", **options)
    assert ended.returncode == 1, ended.stderr
    assert [word for word in words if word not in ended.stdout] == [], ended.stdout
    assert SECRET not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"mappings": {"properties": {"title": {"type": "txt"}}}}', ("index.json of", "title", "txt")),
        ('{"settings": {"number_of_shads": 1}}', ("index.json of blogpost", "number_of_shads")),
    ],
)
def test_apply_prints_the_error_and_leaves(draft: World, text: str, words: tuple[str, ...]) -> None:
    """What only Elasticsearch refuses is tried before anything is active."""
    write(draft, "index.json", text)
    explained(draft, "apply --yes", *words)


def test_an_id_that_comes_twice_is_explained_and_can_be_fixed(empty_world: World) -> None:
    """A join that multiplies documents is refused before it is active; the fixed SELECT is then applied.

    An id of type char(n) is not cut to its first character.
    """
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text() + BLOG)
    world.sql("CREATE TABLE countries (code char(3) PRIMARY KEY, name text)")
    world.sql("INSERT INTO countries VALUES ('fra', 'France'), ('fin', 'Finland')")
    world.migrate()
    multiplied = "SELECT p.id AS _id, c.name AS title FROM posts AS p JOIN comments AS c ON c.post_id = p.id"
    write(world, "select.sql", multiplied)
    explained(world, "apply --yes", "_id 2 more than once", "aggregate", "syncer apply")
    write(world, "select.sql", "SELECT c.code AS _id, c.name AS title FROM countries AS c")
    world.prints("apply", "--yes")
    assert world.held().keys() == {"fra", "fin"}


# Settings, and servers that do not answer


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine where nothing listens, nor begins to meanwhile, since it is taken."""
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        yield occupied.getsockname()[1]


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
        ("Postgres", "plan"),
        ("Elasticsearch", "apply --yes"),
        ("Kafka", "apply --yes"),
        ("Postgres", "status"),
        ("Elasticsearch", "status"),
    ],
)
def test_a_server_is_down(draft: World, closed_port: int, server: str, line: str) -> None:
    """A command ends with one error, and names the setting; status shows the server, and what the others answer."""
    down = {name: value.format(secret=SECRET, port=closed_port) for name, value in DOWN[server].items()}
    if line == "status":
        refused = f"{server} refuses connections at 127.0.0.1:{closed_port}"
        printed = shown(draft, refused, environment=down, seconds=DOWN_SECONDS)
        assert ("No daemon is running" in printed) == (server != "Postgres")
    else:
        explained(draft, line, f"{server} cannot be reached", next(iter(down)), environment=down, seconds=DOWN_SECONDS)


def test_settings_are_named(draft: World, tmp_path: Path) -> None:
    """All that are missing at once; a property that Kafka does not know; a server that is not Elasticsearch."""
    bare = {name: "" for name in draft.environment if name.startswith("SYNCER_")} | {"SYNCER_CONFIG": str(tmp_path)}
    explained(draft, "status", "SYNCER_POSTGRES_DSN", "SYNCER_ELASTICSEARCH_URL", "sandbox", environment=bare)
    kafka = draft.endpoints.kafka_bootstrap_servers
    unknown = {"SYNCER_KAFKA_PROPERTIES": '{"no.such": 1}', "SYNCER_KAFKA_BOOTSTRAP_SERVERS": kafka}
    explained(draft, "apply --yes", "no.such", "kafka.properties", environment=unknown)
    url = f"http://{kafka}"
    elsewhere: dict[str, Any] = {"environment": {"SYNCER_ELASTICSEARCH_URL": url}, "seconds": DOWN_SECONDS}
    explained(draft, "apply --yes", "Elasticsearch", "SYNCER_ELASTICSEARCH_URL", **elsewhere)
    shown(draft, "Elasticsearch is not usable", **elsewhere)
    explained(draft, f"--config {tmp_path}/absent plan", "absent")
    index = {"SYNCER_ELASTICSEARCH_URL": f"{draft.endpoints.elasticsearch_url}/search"}
    explained(draft, "plan", "elasticsearch.url has a path", environment=index)
    read_only = {"PGOPTIONS": "-c default_transaction_read_only=on"}
    explained(draft, "plan", "read-only transaction", "pg_is_in_recovery()", environment=read_only)


# The schema and privileges


def test_a_database_without_the_schema_or_with_that_of_a_newer_syncer(empty_world: World) -> None:
    """The first is to be migrated, the other is left alone."""
    shown(empty_world, "no syncer schema", "syncer migrate")
    for line in ("run", "apply --yes"):
        explained(empty_world, line, "no syncer schema", "syncer migrate")
    empty_world.migrate()
    empty_world.sql("INSERT INTO syncer.migration (name, checksum) VALUES ('9999.from-the-future', 'x')")
    shown(empty_world, "another version of syncer", "9999.from-the-future", "Install")
    explained(empty_world, "migrate", "another version of syncer", "9999.from-the-future", "Install")


def test_a_role_that_lacks_a_privilege(empty_world: World) -> None:
    """Each command names what its role lacks, and leaves nothing; the owner's apply then works."""
    world, role = empty_world, f"{empty_world.name}_stranger"
    world.sql(BLOG_SCHEMA.read_text() + BLOG)
    world.sql(f"CREATE ROLE {role} LOGIN")
    stranger = {"SYNCER_POSTGRES_DSN": world.dsn_of(role)}
    try:
        explained(world, "migrate", "permission denied", "GRANT CREATE ON DATABASE", environment=stranger)
        assert world.sql("SELECT to_regnamespace('syncer')") == [(None,)]
        world.migrate()
        shown(world, "permission denied", "GRANT USAGE ON SCHEMA", "docs/roles.sql", environment=stranger)
        world.sql(
            f"GRANT USAGE, CREATE ON SCHEMA syncer TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA syncer TO {role};"
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA syncer TO {role}; GRANT SELECT ON users, posts, comments TO {role}"
        )
        explained(world, "apply --yes", "permission denied", "must own the table", environment=stranger)
        assert world.sql("SELECT name FROM syncer.document") == []
        world.prints("apply", "--yes")
        assert world.differences() == []
        world.sql(f"REVOKE INSERT ON syncer.event FROM {role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA syncer TO {role}")
        ended = world.syncer("verify", environment=stranger)  # the timeline alone lacks the command
        assert (ended.returncode, "timeline.write_failed" in ended.stderr) == (0, True), ended.stderr
    finally:
        world.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


# Arguments that a command does not know, or that are missing


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ("apply blogpots --yes", ("There is no document blogpots", "There are: blogpost"), 1),
        ("plan blogpots", ("There is no document blogpots", "There are: blogpost"), 1),
        ("index abort blogpost", ("No index of blogpost is being built",), 1),
        ("verify absent", ("No document absent is active", "blogpost"), 1),
        ("backfill absent", ("absent", "blogpost"), 1),
        ("dead-letters list absent", ("No document absent is active", "blogpost"), 1),
        ("dead-letters retry blogpost 1", ("blogpost has no dead letter 1",), 1),
        ("apply", ("Confirmation required", "--yes"), 2),
    ],
)
def test_what_is_not_there_is_named(loaded: World, line: str, words: tuple[str, ...], code: int) -> None:
    """So is what is there instead; without an answer nothing changes."""
    explained(loaded, line, *words, code=code)
    assert loaded.sql("SELECT revision FROM syncer.document") == [(1,)]


def test_a_backfill_of_nonsense_is_refused(loaded: World) -> None:
    """Nothing is made of it, and the error names which line was wrong."""
    lines = b"1\n" + 600 * b"x" + b"\n"
    explained(loaded, "backfill blogpost --ids -", "Line 2", "512 bytes", stdin=lines)
    assert loaded.sql("SELECT id FROM syncer.job WHERE kind <> 'initial_load'") == []
