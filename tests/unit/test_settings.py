"""Settings come from the file, the environment and files of secrets, are checked whole, and show no secret."""

from __future__ import annotations

import json
import os
import re
import signal
import traceback
from pathlib import Path
from threading import Timer, get_ident

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from syncer.base import settings
from syncer.base.errors import ConfigError
from syncer.base.settings import PostgresSettings, Settings
from tests.support.world import REPOSITORY

SECRET = "pa:ss'w\"o%s{}/@ß*&!rd"  # noqa: S105 - has whatever a URL, YAML, JSON, a format or a log might stumble over
START = SECRET[:6]
FILE_NAME = "syncer.yaml"
FILE = """
postgres: {dsn: host=db}
kafka: {bootstrap_servers: "file:9092", properties: {security.protocol: SASL_SSL}}
elasticsearch: {url: "https://search:9200"}
worker: {threads: 5, batch_documents_max: 7}
relay:  # each of its settings may be commented out
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder with a file, and nothing of syncer's in the environment but its name."""
    for name in os.environ:
        if name.startswith("SYNCER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SYNCER_CONFIG", str(tmp_path))
    (tmp_path / FILE_NAME).write_text(FILE)
    return tmp_path


def refused() -> str:
    """The message, the hint and the traceback of settings that are not valid."""
    with pytest.raises(ConfigError) as raised:
        settings.load()
    assert raised.value.hint
    return f"{raised.value.message}\n" + "".join(traceback.format_exception(raised.value))


def secret_file(folder: Path, content: str) -> str:
    """A file as Docker's secrets are: with a line break at its end, which is not part of it."""
    file = folder / f"secret-{len(list(folder.iterdir()))}"
    file.write_text(f"{content}\n")
    return str(file)


def test_the_environment_goes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable overrides its setting and leaves its neighbours in the same section alone."""
    monkeypatch.setenv("SYNCER_WORKER_THREADS", "1")
    monkeypatch.setenv("SYNCER_KAFKA_BOOTSTRAP_SERVERS", "")  # an empty one is not set
    monkeypatch.setenv("SYNCER_KAFKA_REPLICATION_FACTOR", "3")
    loaded = settings.load()
    assert (loaded.worker.threads, loaded.worker.batch_documents_max) == (1, 7)
    assert (loaded.kafka.bootstrap_servers, loaded.kafka.replication_factor) == ("file:9092", 3)
    assert loaded.of("one").kafka.topic == "syncer.changes.one"
    with pytest.raises(ValueError, match="frozen"):
        loaded.worker.threads = 9


def test_the_environment_alone_will_do(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file, two variables are enough."""
    (config / FILE_NAME).unlink()
    assert f"{config / 'syncer.yaml'} does not exist" in refused()
    monkeypatch.setenv("SYNCER_POSTGRES_DSN", "postgresql:///blog")
    monkeypatch.setenv("SYNCER_ELASTICSEARCH_URL", "http://a:9200")
    assert settings.load().elasticsearch.url == "http://a:9200"


def test_an_interrupt_is_one_while_settings_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pydantic wraps or loses one that comes while it builds the validator, when settings are first loaded."""
    validate, waits = Settings.model_validate, iter(range(1, 400))

    def first_validate(sections: object) -> Settings:
        interrupt = Timer(next(waits) / 40_000, signal.pthread_kill, (get_ident(), signal.SIGALRM))
        interrupt.start()
        try:
            Settings.model_rebuild(force=True)
            return validate(sections)
        finally:
            interrupt.join()

    monkeypatch.setattr(Settings, "model_validate", first_validate)
    monkeypatch.setattr(settings, "_INTERRUPTS", {signal.SIGALRM})
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupts = 0
    try:
        for _ in range(300):
            try:
                settings.load()
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.signal(signal.SIGALRM, former)
    assert interrupts


WRONG: list[tuple[str, str, tuple[str, ...]]] = [
    ("SYNCER_WORKER_THREADS", "many", ("worker.threads", "valid integer")),
    ("SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX", "1", ("worker.fan_out_documents_max: unknown", "batch_documents_max")),
    ("SYNCER_POSTGRES_PASSWORD", SECRET, ("postgres.password: unknown setting", "connection string has the password")),
    ("SYNCER_KAFKA_SASL_PASSWORD", SECRET, ("kafka.sasl_password: unknown", "properties of its client have the pass")),
    ("SYNCER_WORKER_BATCH_DOCUMENTS_MAX", "0", ("worker.batch_documents_max", "greater than 0")),
    ("SYNCER_RELAY_POLL_SECONDS", "0", ("relay.poll_seconds", "greater than 0")),
    *(("SYNCER_WEB_TOKEN", token, ("at least 16",)) for token in ("short", f"two\n{SECRET}", "ein Schlüssel")),
    ("SYNCER_LOG_LEVEL", "loud", ("log.level", "warning")),
    ("SYNCER_KAFKA_PROPERTIES", "acks=all", ("SYNCER_KAFKA_PROPERTIES",)),
    ("SYNCER_ELASTICSEARCH_URL", "http://a:9200,b:9200", ("elasticsearch.url", "http://localhost:9200")),
    ("SYNCER_POSTGRES_DSN", f"host=127.0.0.1 password=a {SECRET}", ("SYNCER_POSTGRES_DSN", "postgresql://")),
    ("SYNCER_KAFKA_REPLICATION_FACTOR", "-2", ("kafka.replication_factor",)),
    ("SYNCER_POSTGRES", "localhost", ("postgres",)),
    (FILE_NAME, f"{FILE}workers:\n  threads: 2\n", ("workers: unknown setting", "sections are: postgres")),
    (FILE_NAME, "postgres: here\n", ("postgres",)),
    (FILE_NAME, "postgres: [\n", ("YAML",)),
    (FILE_NAME, "- postgres\n", ("sections of settings",)),
    (FILE_NAME, "postgres\n", ("sections of settings",)),
    (
        FILE_NAME,
        "postgres:\n  dsn: x\n",
        ("elasticsearch.url is not set", "SYNCER_POSTGRES_DSN, ", "sandbox start"),
    ),
    (FILE_NAME, "postgres: {}\n", ("postgres.dsn is not set",)),
    (FILE_NAME, "worker: 5\nkafka: off\n", ("worker is a section: its settings follow", "kafka is a section: ")),
    (FILE_NAME, f"{FILE}more: *{SECRET}\n", ("YAML",)),
    (FILE_NAME, f"{FILE}more: !{SECRET}\n", ("YAML",)),
    (FILE_NAME, FILE.replace("host=db", f"postgresql://u:{SECRET}@h:port/x"), ()),
    *(
        ("SYNCER_POSTGRES_DSN", dsn, ("%40 for @",))
        for dsn in (
            f"postgresql://u:x@{START}@h/x",
            f"postgresql://u:x/{START}@h:5432/x",
            f"postgresql://u:{START}/7@h/x",
            f"postgres://u@server:{START}@h:5432/x?sslmode=require",
            f"postgresql://u:7/{START}@h",
            f"postgresql://u:{START}%zz@h/x",
        )
    ),
    *(
        (FILE_NAME, FILE.replace("https://search:9200", f"https://u:{password}@h:9200"), ())
        for password in (f"7/{START}", f"7?{START}", f"7#{START}")
    ),
    (FILE_NAME, FILE.replace("https://search:9200", f"https://u:{SECRET}@h:port"), ()),
    (FILE_NAME, FILE.replace("https://search:9200", f"https://u:{SECRET}@h"), ()),
    (FILE_NAME, FILE.replace("https://search:9200", f"u:{SECRET}@h:9200"), ()),
    (FILE_NAME, FILE.replace("postgres: {dsn: host=db}", f"postgres:dsn:postgresql://u:{SECRET}@h"), ()),
    (FILE_NAME, FILE.replace("postgres: {dsn: host=db}", f"postgres: postgresql://u:{SECRET}@h"), ()),
    (FILE_NAME, FILE.replace("security.protocol: SASL_SSL", f'sasl.password: ["{START}"]'), ("kafka.properties",)),
    (FILE_NAME, f'postgres: {{password: "{START}", dsn: [x]}}', ("postgres.password",)),
]
"""A variable or the file, what is in it, and parts of the refusal."""


@pytest.mark.parametrize(("where", "text", "expected"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named_and_no_secret_is_shown(
    config: Path, monkeypatch: pytest.MonkeyPatch, where: str, text: str, expected: tuple[str, ...]
) -> None:
    """What is unknown too, with what its section has instead; neither the error nor its traceback quotes a secret."""
    if where == FILE_NAME:
        (config / where).write_text(text)
    else:
        monkeypatch.setenv(where, text)
    refusal = refused()
    assert [words for words in expected if words not in refusal] == [], refusal
    assert START not in refusal
    assert "o%s{}" not in refusal


TUNABLE = {"client.id", "compression.type", "linger.ms", "socket.nagle.disable", "reconnect.backoff.max.ms"}
"""What syncer sets and anyone may set otherwise, as the timeouts of a session."""


def test_every_property_that_syncer_sets_is_its_own() -> None:
    """None can be replaced, but for those that change nothing that it guarantees."""
    folder = REPOSITORY / "syncer" / "kafka"
    source = "".join(file.read_text() for file in folder.glob("*.py"))
    names = set(re.findall(r'^ +"([a-z]+(?:\.[a-z]+)+)": ', source, re.MULTILINE))
    assert {"acks", "message.max.bytes", "group.id"} & names
    sessions = {"session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"}
    assert names - TUNABLE - sessions <= settings.OWN_PROPERTIES


@pytest.mark.parametrize("name", sorted(settings.OWN_PROPERTIES))
def test_a_property_that_a_guarantee_rests_on_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The error names it, and says to remove it."""
    monkeypatch.setenv("SYNCER_KAFKA_PROPERTIES", json.dumps({name: 7}))
    refusal = refused()
    assert f"kafka.properties: {name} " in refusal
    assert "remove it" in refusal
    monkeypatch.setenv("SYNCER_KAFKA_PROPERTIES", '{"linger.ms": 5}')
    assert settings.load().kafka.properties["linger.ms"] == 5


@pytest.mark.parametrize(
    ("dsn", "timeout", "attributes"),
    [
        ("host=a,b dbname=d", "10", "read-write"),
        ("postgresql://a:1,b:2/d?connect_timeout=3", "3", "read-write"),
        ("hostaddr=10.0.0.1,10.0.0.2", "10", "read-write"),
        ("host=a,b target_session_attrs=any", "10", "any"),
        ("host=a", "10", None),
    ],
)
def test_the_connection_string_has_our_defaults(dsn: str, timeout: str, attributes: str | None) -> None:
    """It waits ten seconds, and passes over a standby that answers first, unless it says otherwise."""
    options = conninfo_to_dict(PostgresSettings(dsn=SecretStr(dsn)).conninfo)
    assert (options["connect_timeout"], options.get("target_session_attrs")) == (timeout, attributes)


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("postgresql://u:{}@h/d?schema=public&connection_limit=5", "libpq has no parameter connection_limit, schema"),
        ("postgres://u:{}@h/d?sslmode=require&pool=5", "libpq has no parameter pool"),
        ("postgresql+psycopg://u:{}@h/d", "without the name of a driver"),
        ("jdbc:postgresql://h/d?user=u&password={}", "without the name of a driver"),
        ("postgresql://u:{}?a=1@h/d?b=2", "not a connection string"),
    ],
)
def test_a_connection_string_of_another_client_is_named(monkeypatch: pytest.MonkeyPatch, dsn: str, words: str) -> None:
    """What Prisma, Rails, SQLAlchemy and JDBC add is said; what may be a part of the password is not."""
    monkeypatch.setenv("SYNCER_POSTGRES_DSN", dsn.format("s3cret"))
    refusal = refused()
    assert words in refusal
    assert "s3cret" not in refusal
    assert "a=1" not in refusal


SECRETS = {
    "SYNCER_POSTGRES_DSN": "host=db user=syncer password=hunter2hunter2",
    "SYNCER_KAFKA_PROPERTIES": json.dumps({"sasl.username": "u", "sasl.password": SECRET}),
    "SYNCER_ELASTICSEARCH_URL": "https://u:hunter2hunter2@other:9200",
    "SYNCER_ELASTICSEARCH_PASSWORD": SECRET,
    "SYNCER_ELASTICSEARCH_API_KEY": SECRET,
    "SYNCER_WEB_TOKEN": SECRET.replace("ß", "s"),
}


@pytest.mark.parametrize("in_files", [False, True])
def test_every_secret_can_be_in_a_file_and_is_not_shown(
    config: Path, monkeypatch: pytest.MonkeyPatch, *, in_files: bool
) -> None:
    """A variable with _FILE names the file that has the value. Neither the settings nor an error shows it."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(f"{name}_FILE" if in_files else name, secret_file(config, value) if in_files else value)
    loaded = settings.load()
    assert loaded.postgres.dsn == SecretStr(SECRETS["SYNCER_POSTGRES_DSN"])
    assert loaded.elasticsearch.password == loaded.elasticsearch.api_key == SecretStr(SECRET)
    assert loaded.web.token == SecretStr(SECRETS["SYNCER_WEB_TOKEN"])
    # Properties are added to those of the file.
    assert loaded.kafka.properties == {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": SECRET}
    monkeypatch.setenv("SYNCER_WORKER_THREADS", SECRET)
    shown = f"{loaded!r} {loaded} {loaded.kafka!r} {loaded.postgres!r} {loaded.elasticsearch!r} {refused()}"
    assert START not in shown
    assert "hunter2" not in shown


def test_a_file_of_a_secret_that_cannot_be_read_is_named_by_its_variable(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not there, a folder, empty, no UTF-8, no JSON, and the secret itself in place of a path: none is quoted."""
    name = "SYNCER_POSTGRES_DSN_FILE"
    monkeypatch.setenv(name, "")
    assert settings.load().postgres.dsn == SecretStr("host=db")  # a variable that is empty names no file
    (config / "empty").write_text("\n")
    (config / "binary").write_bytes(b"\xff\xfe")
    secret = f"postgresql://syncer:{SECRET}@db/shop"
    for path, expected in (
        (str(config / "nowhere"), "No such file"),
        (str(config), "directory"),
        (str(config / "empty"), "is empty"),
        (str(config / "binary"), "not UTF-8"),
        (secret, "No such file"),
        ("x" * 300 + secret, "File name too long"),
    ):
        monkeypatch.setenv(name, path)
        refusal = refused()
        assert expected in refusal
        assert name in refusal
        assert path not in refusal
        assert SECRET not in refusal
    monkeypatch.setenv(name, secret_file(config, "host=db"))
    monkeypatch.setenv("SYNCER_POSTGRES_DSN", "host=db")
    assert "SYNCER_POSTGRES_DSN and SYNCER_POSTGRES_DSN_FILE are both set" in refused()
    monkeypatch.delenv(name)
    for content in (f'{{"sasl.password": {SECRET}}}', SECRET, f'["{START}"]'):
        monkeypatch.setenv("SYNCER_KAFKA_PROPERTIES_FILE", secret_file(config, content))
        assert START not in refused()
