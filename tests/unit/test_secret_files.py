"""A secret may be in a file, and nothing that is said shows it, nor the variable that was meant to name the file."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from syncer.base import settings
from syncer.base.errors import ConfigError
from syncer.kafka.topic import common

HOSTILE = "pa:ss'w\"o%s{}/@ß*&!rd"
"""Has whatever a URL, YAML, JSON, a format or a log might stumble over."""
DSN = "host=db user=syncer password=hunter2hunter2"
FILE = """
postgres: {dsn: host=db}
kafka: {bootstrap_servers: "a:9092", properties: {security.protocol: SASL_SSL}}
elasticsearch: {url: "https://search:9200"}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder with a file that has no secrets in it, and nothing of syncer's in the environment."""
    for name in os.environ:
        if name.startswith("SYNCER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SYNCER_CONFIG", str(tmp_path))
    (tmp_path / "syncer.yaml").write_text(FILE)
    return tmp_path


def secret_file(folder: Path, content: str) -> str:
    """A file as Docker's secrets are: with a line break at its end, which is not part of it."""
    file = folder / f"secret-{len(list(folder.iterdir()))}"
    file.write_text(f"{content}\n")
    return str(file)


def refused() -> str:
    """What is said, and what a traceback shows, of settings that are not valid."""
    with pytest.raises(ConfigError) as raised:
        settings.load()
    assert raised.value.hint
    return f"{raised.value.message}\n" + "".join(traceback.format_exception(raised.value))


def test_every_secret_can_be_in_a_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting that no output shows is the content of the file that its variable, with _FILE, names."""
    monkeypatch.setenv("SYNCER_POSTGRES_DSN_FILE", secret_file(config, DSN))
    monkeypatch.setenv("SYNCER_POSTGRES_PASSWORD_FILE", secret_file(config, HOSTILE))
    monkeypatch.setenv("SYNCER_KAFKA_SASL_PASSWORD_FILE", secret_file(config, HOSTILE))
    monkeypatch.setenv("SYNCER_KAFKA_PROPERTIES_FILE", secret_file(config, '{"sasl.username": "u", "acks": -1}'))
    monkeypatch.setenv("SYNCER_ELASTICSEARCH_URL_FILE", secret_file(config, "https://u:p@other:9200"))
    monkeypatch.setenv("SYNCER_ELASTICSEARCH_PASSWORD_FILE", secret_file(config, HOSTILE))
    monkeypatch.setenv("SYNCER_ELASTICSEARCH_API_KEY_FILE", secret_file(config, HOSTILE))
    monkeypatch.setenv("SYNCER_WEB_TOKEN_FILE", secret_file(config, "a token that is long enough"))
    (config / "syncer.yaml").write_text('kafka: {bootstrap_servers: "a:9092"}\n')
    loaded = settings.load()
    assert loaded.postgres.dsn == SecretStr(DSN)
    assert conninfo_to_dict(loaded.postgres.conninfo)["password"] == HOSTILE
    assert loaded.elasticsearch.url == "https://u:p@other:9200"
    assert loaded.elasticsearch.password == loaded.elasticsearch.api_key == SecretStr(HOSTILE)
    assert common(loaded.kafka).items() >= {"sasl.username": "u", "sasl.password": HOSTILE, "acks": -1}.items()
    assert loaded.web.secret() == "a token that is long enough"
    assert HOSTILE not in repr(loaded)
    assert "hunter2" not in repr(loaded)


def test_the_environment_goes_before_the_file_of_settings(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the value is in a file."""
    monkeypatch.setenv("SYNCER_POSTGRES_DSN_FILE", secret_file(config, DSN))
    assert settings.load().postgres.dsn == SecretStr(DSN)


@pytest.mark.usefixtures("config")
def test_a_variable_that_is_empty_names_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is passed on though nobody has set it changes nothing."""
    monkeypatch.setenv("SYNCER_POSTGRES_DSN_FILE", "")
    assert settings.load().postgres.dsn == SecretStr("host=db")


def test_a_file_that_cannot_be_read_is_said_by_the_name_of_its_variable(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not there, a folder, empty, no UTF-8, and the secret itself in place of a path: none is quoted."""
    name = "SYNCER_POSTGRES_DSN_FILE"
    (config / "empty").write_text("\n")
    (config / "binary").write_bytes(b"\xff\xfe")
    secret = f"postgresql://syncer:{HOSTILE}@db/shop"
    for path, said in (
        (str(config / "nowhere"), "No such file"),
        (str(config), "directory"),
        (str(config / "empty"), "is empty"),
        (str(config / "binary"), "not UTF-8"),
        (secret, "No such file"),
        ("x" * 300 + secret, "File name too long"),
    ):
        monkeypatch.setenv(name, path)
        refusal = refused()
        assert said in refusal
        assert name in refusal
        assert path not in refusal
        assert HOSTILE not in refusal
    monkeypatch.setenv(name, secret_file(config, DSN))
    monkeypatch.setenv("SYNCER_POSTGRES_DSN", DSN)
    assert "SYNCER_POSTGRES_DSN and SYNCER_POSTGRES_DSN_FILE are both set" in refused()


def test_properties_in_a_file_are_an_object(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not JSON, or not an object, is refused, and not quoted."""
    for content in (f'{{"sasl.password": {HOSTILE}}}', HOSTILE, f"[{HOSTILE!r}]", f'["{HOSTILE[:6]}"]'):
        monkeypatch.setenv("SYNCER_KAFKA_PROPERTIES_FILE", secret_file(config, content))
        refusal = refused()
        assert HOSTILE not in refusal
        assert HOSTILE[:6] not in refusal


@pytest.mark.parametrize(
    "text",
    [
        FILE + f"  password: *{HOSTILE}\n",
        FILE + f"  password: !{HOSTILE}\n",
        FILE.replace("host=db", f"postgresql://u:{HOSTILE}@h:port/x"),
        FILE.replace("https://search:9200", f"https://u:{HOSTILE}@h:port"),
        FILE.replace("https://search:9200", f"https://u:{HOSTILE}@h"),
        FILE.replace("https://search:9200", f"u:{HOSTILE}@h:9200"),
        FILE.replace("postgres: {dsn: host=db}", f"postgres:dsn:postgresql://u:{HOSTILE}@h"),
        FILE.replace("postgres: {dsn: host=db}", f"postgres: postgresql://u:{HOSTILE}@h"),
        FILE.replace("security.protocol: SASL_SSL", f'sasl.password: ["{HOSTILE[:6]}"]'),
        f"postgres: {{password: '{HOSTILE[:6]}', dsn: [x]}}",
    ],
)
def test_a_file_that_is_refused_is_not_quoted(config: Path, text: str) -> None:
    """Whatever is wrong with config/syncer.yaml, neither the error nor its traceback shows a secret that is in it."""
    (config / "syncer.yaml").write_text(text)
    refusal = refused()
    assert HOSTILE[:6] not in refusal
    assert "o%s{}" not in refusal
