"""Settings come from the file and the environment, are checked whole, and keep their secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from syncer.base import settings
from syncer.base.errors import ConfigError
from syncer.base.settings import PostgresSettings, Settings

SECRET = "s3cr3t-w0rd"  # noqa: S105 - what no output may show
FILE = """
postgres:
  dsn: postgresql://file@db/blog
kafka:
  bootstrap_servers: file:9092
  properties:
    security.protocol: SASL_SSL
elasticsearch:
  url: http://file:9200
worker:
  threads: 5
  batch_documents_max: 7
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder with a file, and nothing of syncer's in the environment but its name."""
    for name in os.environ:
        if name.startswith("SYNCER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SYNCER_CONFIG", str(tmp_path))
    (tmp_path / "syncer.yaml").write_text(FILE)
    return tmp_path


def refused() -> str:
    """What is said about settings that are not valid."""
    with pytest.raises(ConfigError) as raised:
        settings.load()
    assert raised.value.hint
    return f"{raised.value.message}\n{raised.value.hint}"


@pytest.mark.usefixtures("config")
def test_the_file_is_read() -> None:
    """What the file says holds, and what it does not say has its default."""
    loaded = settings.load()
    assert loaded.postgres.dsn.get_secret_value() == "postgresql://file@db/blog"
    assert loaded.kafka.properties == {"security.protocol": "SASL_SSL"}
    assert loaded.worker.threads == 5
    assert loaded.kafka.topic == ""
    assert loaded.of("one").kafka.topic == "syncer.changes.one"
    assert loaded.log.format == "auto"


@pytest.mark.usefixtures("config")
def test_the_environment_goes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable overrides its setting and leaves its neighbours in the same section alone."""
    monkeypatch.setenv("SYNCER_WORKER_THREADS", "1")
    monkeypatch.setenv("SYNCER_KAFKA_BOOTSTRAP_SERVERS", "environment:9092")
    loaded = settings.load()
    assert loaded.worker.threads == 1
    assert loaded.worker.batch_documents_max == 7
    assert loaded.kafka.bootstrap_servers == "environment:9092"
    assert loaded.kafka.properties == {"security.protocol": "SASL_SSL"}


def test_the_environment_alone_will_do(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file, three variables are enough."""
    (config / "syncer.yaml").unlink()
    monkeypatch.setenv("SYNCER_POSTGRES_DSN", "postgresql:///blog")
    monkeypatch.setenv("SYNCER_KAFKA_BOOTSTRAP_SERVERS", "a:9092")
    monkeypatch.setenv("SYNCER_ELASTICSEARCH_URL", "http://a:9200")
    assert settings.load().elasticsearch.url == "http://a:9200"


VARIABLES: dict[str, tuple[str, Callable[[Settings], bool]]] = {
    "SYNCER_POSTGRES_CONNECT_TIMEOUT_SECONDS": ("3", lambda one: one.postgres.connect_timeout_seconds == 3),
    "SYNCER_KAFKA_REPLICATION_FACTOR": ("3", lambda one: one.kafka.replication_factor == 3),
    "SYNCER_KAFKA_PROPERTIES": ('{"acks": "all"}', lambda one: one.kafka.properties["acks"] == "all"),
    "SYNCER_ELASTICSEARCH_API_KEY": ("k", lambda one: one.elasticsearch.api_key == SecretStr("k")),
    "SYNCER_ELASTICSEARCH_CA_CERTS": ("/ca.pem", lambda one: one.elasticsearch.ca_certs == Path("/ca.pem")),
    "SYNCER_RELAY_POLL_SECONDS": ("0.5", lambda one: one.relay.poll_seconds == 0.5),
    "SYNCER_WORKER_BULK_BYTES_MAX": ("9", lambda one: one.worker.bulk_bytes_max == 9),
    "SYNCER_LOG_FORMAT": ("json", lambda one: one.log.format == "json"),
    "SYNCER_LOG_LEVEL": ("debug", lambda one: one.log.level == "debug"),
}


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("name", VARIABLES)
def test_every_setting_has_its_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Section and name make the variable, also where the name has underscores."""
    value, holds = VARIABLES[name]
    monkeypatch.setenv(name, value)
    assert holds(settings.load())


WRONG = {
    "SYNCER_WORKER_THREADS": ("many", ("worker.threads", "valid integer")),
    "SYNCER_WORKER_THREAD": ("1", ("worker.thread", "unknown setting")),
    "SYNCER_WORKER_BATCH_DOCUMENTS_MAX": ("0", ("worker.batch_documents_max", "greater than 0")),
    "SYNCER_RELAY_POLL_SECONDS": ("0", ("relay.poll_seconds", "greater than 0")),
    "SYNCER_LOG_FORMAT": ("xml", ("log.format", "json")),
    "SYNCER_LOG_LEVEL": ("loud", ("log.level", "warning")),
    "SYNCER_KAFKA_PROPERTIES": ("acks=all", ("SYNCER_KAFKA_PROPERTIES",)),
    "SYNCER_ELASTICSEARCH_URL": ("http://a:9200,b:9200", ("elasticsearch.url", "http://localhost:9200")),
    "SYNCER_POSTGRES_DSN": (f"host=127.0.0.1 password=a {SECRET}", ("SYNCER_POSTGRES_DSN", "postgresql://")),
    "SYNCER_KAFKA_REPLICATION_FACTOR": ("-2", ("kafka.replication_factor",)),
    "SYNCER_POSTGRES": ("localhost", ("postgres",)),
}


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A variable that is unknown or of the wrong kind is refused, by the name of its setting."""
    value, says = WRONG[name]
    monkeypatch.setenv(name, value)
    said = refused()
    assert [words for words in says if words not in said] == [], said
    assert SECRET not in said


UNSAFE = {
    "acks": 1,
    "request.required.acks": "0",
    "enable.idempotence": False,
    "delivery.report.only.error": True,
    "transactional.id": "t",
    "enable.auto.commit": True,
    "auto.commit.enable": "true",
    "enable.auto.offset.store": True,
    "auto.offset.reset": "latest",
    "enable.partition.eof": True,
    "partition.assignment.strategy": "range",
    "group.protocol": "consumer",
    "group.instance.id": "one",
    "bootstrap.servers": "b:9092",
    "metadata.broker.list": "b:9092",
    "group.id": "others",
}


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("name", UNSAFE)
def test_a_property_that_a_guarantee_rests_on_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The error names it, and says to remove it; a value that keeps the guarantee is accepted."""
    monkeypatch.setenv("SYNCER_KAFKA_PROPERTIES", json.dumps({name: UNSAFE[name]}))
    said = refused()
    assert f"kafka.properties: {name} " in said
    assert "remove it" in said
    monkeypatch.setenv("SYNCER_KAFKA_PROPERTIES", '{"acks": "ALL", "enable.idempotence": true, "linger.ms": 5}')
    assert settings.load().kafka.properties["linger.ms"] == 5


HOSTS = {
    "host=a,b dbname=d": "read-write",
    "postgresql://a:1,b:2/d": "read-write",
    "hostaddr=10.0.0.1,10.0.0.2": "read-write",
    "host=a,b target_session_attrs=any": "any",
    "host=a": None,
}


@pytest.mark.parametrize("dsn", HOSTS)
def test_of_several_hosts_of_postgres_the_first_that_takes_writes_is_used(dsn: str) -> None:
    """A standby that answers first is passed over."""
    made = PostgresSettings(dsn=SecretStr(dsn))
    assert conninfo_to_dict(made.conninfo).get("target_session_attrs") == HOSTS[dsn]


FILES = {
    "unknown_key": (FILE + "  thread: 2\n", ("worker.thread", "unknown setting")),
    "unknown_section": (FILE + "workers:\n  threads: 2\n", ("workers", "unknown setting")),
    "section_is_a_word": ("postgres: here\n", ("postgres",)),
    "not_yaml": ("postgres: [\n", ("syncer.yaml", "YAML")),
    "a_list": ("- postgres\n", ("syncer.yaml",)),
    "a_word": ("postgres\n", ("syncer.yaml",)),
    "empty": ("", ("postgres", "elasticsearch", "SYNCER_POSTGRES_DSN")),
    "incomplete": ("postgres:\n  dsn: x\n", ("elasticsearch.url is not set",)),
    "section_is_empty": ("postgres: {}\n", ("postgres.dsn is not set",)),
}


@pytest.mark.parametrize(("text", "says"), FILES.values(), ids=FILES.keys())
def test_a_wrong_file_is_named(config: Path, text: str, says: tuple[str, ...]) -> None:
    """A file that is no YAML, or says what nobody reads, is refused; so is one that says too little."""
    (config / "syncer.yaml").write_text(text)
    said = refused()
    assert [words for words in says if words not in said] == [], said
    assert str(config / "syncer.yaml") in said


def test_a_file_that_is_not_there_is_said_to_be_missing(config: Path) -> None:
    """Whoever has no file is told where it was looked for, and of the sandbox."""
    (config / "syncer.yaml").unlink()
    said = refused()
    assert f"{config / 'syncer.yaml'} does not exist" in said
    assert "syncer sandbox start" in said


def test_the_config_folder_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SYNCER_CONFIG, or with an empty one, it is ``config`` below the working directory."""
    monkeypatch.setenv("SYNCER_CONFIG", "")
    assert settings.config_folder() == Path("config")
    monkeypatch.delenv("SYNCER_CONFIG")
    assert settings.config_folder() == Path("config")


SECRETS = {
    "SYNCER_POSTGRES_DSN": f"postgresql://syncer:{SECRET}@db/blog",
    "SYNCER_ELASTICSEARCH_PASSWORD": SECRET,
    "SYNCER_ELASTICSEARCH_API_KEY": SECRET,
    "SYNCER_ELASTICSEARCH_URL": f"http://elastic:{SECRET}@search:9200",
    "SYNCER_KAFKA_PROPERTIES": f'{{"sasl.password": "{SECRET}"}}',
}


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_not_in_the_settings_words(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Settings that are printed, or shown in a traceback, show no secret."""
    monkeypatch.setenv(name, SECRETS[name])
    loaded = settings.load()
    for shown in (repr(loaded), str(loaded), f"{loaded.kafka!r} {loaded.postgres!r} {loaded.elasticsearch!r}"):
        assert SECRET not in shown


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_not_in_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Settings that are refused for another reason are refused without showing a secret."""
    monkeypatch.setenv(name, SECRETS[name])
    monkeypatch.setenv("SYNCER_WORKER_THREADS", SECRET)
    monkeypatch.setenv("SYNCER_LOG_LEVEL", SECRET)
    assert SECRET not in refused()


@pytest.mark.usefixtures("config")
def test_settings_do_not_change() -> None:
    """Whoever holds settings holds the ones that were checked."""
    loaded: Settings = settings.load()
    with pytest.raises(ValueError, match="frozen"):
        loaded.worker.threads = 9
