"""Settings: ``config/syncer.yaml`` and the environment, validated whole, once, and passed on.

Guarantees that whoever holds a `Settings` holds valid ones. Each setting of the file is overridden by an
environment variable named after it: ``postgres.dsn`` by ``SYNCER_POSTGRES_DSN``. ``SYNCER_CONFIG`` names
another config folder. A secret may be in a file: see `syncer.secret_files`. Nothing is read at import. Secrets are
`SecretStr`, and what is refused is not quoted, so that neither a log nor an error shows them.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

import yaml
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from syncer import events, secret_files
from syncer.errors import ConfigError
from syncer.events import Level

TOKEN_CHARACTERS_MIN = 16
"""How long a token has to be that guards what changes something."""
_DEFAULT_CONFIG_FOLDER = Path("config")
_FILE_NAME = "syncer.yaml"
_FILE_HINT = "As in:\npostgres:\n  dsn: postgresql://user@host/database"
_REQUIRED = {
    "postgres": "postgres.dsn",
    "kafka": "kafka.bootstrap_servers",
    "elasticsearch": "elasticsearch.url",
}
"""What of a section has no default."""
_SAID = {
    "int_parsing": "is to be a whole number",
    "int_type": "is to be a whole number",
    "int_from_float": "is to be a whole number",
    "float_parsing": "is to be a number",
    "float_type": "is to be a number",
    "extra_forbidden": "there is no such setting",
}
"""What is said of a mistake, by pydantic's name for it; of others its own words."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PostgresSettings(_Section):
    """Where the truth lives."""

    dsn: SecretStr
    """Anything that libpq takes: a URI, or ``key=value`` pairs; TLS options go in here."""
    password: SecretStr | None = None
    """The password, for who keeps it apart from the connection string."""
    read_dsn: SecretStr | None = None
    """A streaming replica of it, on which documents are read; without one, that is done where the truth lives."""
    connect_timeout_seconds: PositiveInt = 10
    """How long to wait for a connection."""

    @field_validator("read_dsn", "password", mode="before")
    @classmethod
    def _is_none_if_empty(cls, said: object) -> object:
        return said or None

    @property
    def conninfo(self) -> str:
        """What libpq is given: with the password in it, not to be shown."""
        dsn = self.dsn.get_secret_value()
        return make_conninfo(dsn, password=self.password.get_secret_value()) if self.password else dsn

    @field_validator("dsn", "read_dsn")
    @classmethod
    def _is_connection_string(cls, dsn: SecretStr | None) -> SecretStr | None:
        try:
            conninfo_to_dict(dsn.get_secret_value() if dsn else "")
        except ProgrammingError:
            # What libpq says may quote a part of the password.
            raise ValueError("not a connection string, as in postgresql://user:password@host:5432/database") from None
        return dsn


class KafkaSettings(_Section):
    """The topic of changes."""

    bootstrap_servers: str
    """Brokers to begin with, each as host:port, with commas between them."""
    topic: str = "syncer.changes"
    """The topic of changes; ``apply`` creates it."""
    partitions: PositiveInt = 12
    """How many it gets then: no more workers than that are ever at work at once."""
    replication_factor: Annotated[int, Field(ge=-1)] = -1
    """How many copies of each it gets then; -1 is the broker's own default."""
    group: str = "syncer"
    """The consumer group that all workers join."""
    properties: Annotated[dict[str, str | int | bool], Field(repr=False)] = {}
    """Passed to librdkafka as they are: ``security.protocol``, ``sasl.username`` and the like."""
    sasl_password: SecretStr | None = None
    """What ``sasl.password`` is among them, for who keeps it apart from the others."""


class ElasticsearchSettings(_Section):
    """Where the documents go."""

    url: Annotated[str, Field(repr=False)]
    """With its port, as in ``https://search:9200``; https for TLS."""
    username: str | None = None
    """Who to be, with a password; or else an API key."""
    password: SecretStr | None = None
    """That user's."""
    api_key: SecretStr | None = None
    """An API key, encoded as Elasticsearch hands it out."""
    ca_certs: Path | None = None
    """A file with the certificates of those who may vouch for it; those of the system, if there is none."""
    request_timeout_seconds: PositiveFloat = 60
    """How long a request may take."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        # What the client says of a wrong one quotes it, with the password that may be in it.
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port
        except ValueError:
            is_address = False
        if not is_address:
            raise ValueError("not an address with its port, as in http://localhost:9200, https://search:9200") from None
        return url


class RelaySettings(_Section):
    """From the outbox to the topic."""

    busy_poll_seconds: PositiveFloat = 0.004
    """How long the relay rests while changes come."""
    gather_seconds: NonNegativeFloat = 0.01
    """How long it rests after some have come together, so that many go together."""
    gather_seconds_max: NonNegativeFloat = 0.1
    """How long it rests, at most, the faster they come: the load of a busy application falls, and lag grows by that."""
    awake_seconds: PositiveFloat = 0.01
    """How long after the last change it may sleep until a writer wakes it: so often, at most, does a writer NOTIFY."""
    poll_seconds: PositiveFloat = 0.02
    """How long it rests, at most, when it may not sleep: max_prepared_transactions is not 0, or somebody is writing."""
    safety_poll_seconds: PositiveFloat = 1.0
    """How often it looks while it sleeps, for what no writer rang for: a net, of which nothing is expected. It looks
    every half a minute at least, so that those who stand by do not take it for dead."""
    fetch_rows: PositiveInt = 2000
    """How many rows of the outbox are fetched at once; more than that are streamed."""
    trim_seconds: PositiveFloat = 10
    """How often published rows are given back."""


class WorkerSettings(_Section):
    """From the topic to Elasticsearch."""

    threads: NonNegativeInt = 2
    """How many consumers this daemon adds to the group; with 0 it writes jobs only, and says so."""
    batch_changes_max: PositiveInt = 2000
    """How many changes are handled together."""
    batch_wait_seconds: PositiveFloat = 0.02
    """How long to wait for changes."""
    batch_documents_max: PositiveInt = 1000
    """How many documents are composed together, and in memory at once, by each thread."""
    bulk_bytes_max: PositiveInt = 8 * 1024 * 1024
    """How large a bulk request may grow."""
    gather_seconds: NonNegativeFloat = 0.01
    """How long after a batch of several changes the next is received, so that it has many rather than few."""
    in_flight_max: PositiveInt = 4
    """How many bulk requests each thread has on their way at once."""
    fan_out_documents_max: PositiveInt = 1000
    """A change that touches more documents than that becomes a job."""


class RefresherSettings(_Section):
    """From pages of jobs to Elasticsearch: backfills, rebuilds, refreshes, repairs."""

    in_flight_max: PositiveInt = 4
    """How many bulk requests are on their way at once."""
    idle_seconds: PositiveFloat = 0.5
    """How long to rest when no job had anything to do."""
    live_late_seconds: PositiveFloat = 0.1
    """How long a batch of live changes may take before jobs make way for it."""


class WatchSettings(_Section):
    """What the documents rely on in Postgres."""

    seconds: PositiveFloat = 5
    """How often it is looked at."""


class WebSettings(_Section):
    """The status page, and what monitoring asks over HTTP."""

    host: str = "127.0.0.1"
    """Where to listen: beyond this machine, a token is needed for all but metrics and health."""
    port: Annotated[int, Field(ge=0, le=65535)] | None = 8765
    """0 for any that is free; ``none`` for no page at all. If it is not set, the next free one of ten is taken."""
    token: SecretStr | None = None
    """Who has it may pause jobs, retry dead letters, and see the values of rows. Without one nobody may."""
    token_file: Path | None = None
    """A file that holds the token instead."""

    @field_validator("port", mode="before")
    @classmethod
    def _may_be_none(cls, port: object) -> object:
        if isinstance(port, str) and port.lower() in ("", "none", "null"):
            return None
        if isinstance(port, str) and not port.isdigit():
            raise ValueError("a port is a number from 0 to 65535, or none")
        return port

    @field_validator("token", mode="before")
    @classmethod
    def _is_none_if_empty(cls, token: object) -> object:
        return token or None

    @field_validator("token")
    @classmethod
    def _is_token(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not _is_token(token.get_secret_value()):
            raise ValueError(f"a token has at least {TOKEN_CHARACTERS_MIN} characters of ASCII: openssl rand -hex 32")
        return token

    @property
    def is_port_chosen(self) -> bool:
        """Whether somebody wants just this port, and no other."""
        return "port" in self.model_fields_set

    def secret(self) -> str | None:
        """The token, wherever it is from; None if there is none.

        Raises:
            ConfigError: Its file cannot be read, or holds none.
        """
        if self.token is not None:
            return self.token.get_secret_value()
        if self.token_file is None:
            return None
        try:
            token = self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The file of web.token_file cannot be read: {error}") from error
        if not _is_token(token):
            raise ConfigError(
                f"{self.token_file} holds no token of {TOKEN_CHARACTERS_MIN} characters of ASCII or more",
                hint=f"To make one: openssl rand -hex 32 > {self.token_file}",
            )
        return token


class MetricsSettings(_Section):
    """How syncer watches itself: for /metrics, the status page and the log."""

    seconds: Annotated[float, Field(gt=0, le=60)] = 5
    """How often the servers are asked how far behind everything is; at least once a minute."""
    searchable_seconds: NonNegativeFloat = 60
    """How often a document that was written is searched for until it is found, to measure how long that takes; 0 for
    never. An index that nobody searches is refreshed for it."""
    lag_seconds_max: PositiveFloat = 60
    """How far behind documents may be before ``lag.exceeded`` is logged."""


class TracesSettings(_Section):
    """OpenTelemetry traces, if `syncer[otel]` is installed."""

    endpoint: str | None = None
    """Where spans are sent to, by OTLP over HTTP: http://collector:4318/v1/traces. Without one there are none."""
    service_name: str = "syncer"
    """What they are called by there; OTEL_ variables say the rest."""

    @field_validator("endpoint", mode="before")
    @classmethod
    def _is_none_if_empty(cls, endpoint: object) -> object:
        return endpoint or None


class LogSettings(_Section):
    """What is logged, and how."""

    format: Literal["auto", "json", "console"] = "auto"
    """``auto``: console on a terminal, JSON elsewhere."""
    level: Level = "info"
    """How grave an event must be to be logged; at ``debug`` there is a line for each document that is written."""
    levels: dict[str, Level] = {}
    """The same for single events, or for all whose names begin so: ``{"worker": "warning", "document.written":
    "debug"}``."""
    batch_sample: PositiveInt = 1
    """Of ``relay.batch_published`` and ``worker.batch_indexed`` one line of so many is logged."""
    batch_slow_seconds: NonNegativeFloat = 1.0
    """… and each of a batch that took so long, or is so far behind."""

    @field_validator("levels")
    @classmethod
    def _are_of_events(cls, levels: dict[str, Level]) -> dict[str, Level]:
        known = events.CATALOGUE.keys() | {one.partition(".")[0] for one in events.CATALOGUE}
        for name in levels:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=3)
                raise ValueError(f"no event is called {name}" + (f"; is {' or '.join(near)} meant?" if near else ""))
        return levels


class _FromFileAndEnvironment(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SYNCER_",
        env_nested_delimiter="_",
        env_nested_max_split=1,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - ours reads secrets from files
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is passed goes before the environment, and the environment before the file."""
        return (
            init_settings,
            secret_files.Environment(settings_cls),
            secret_files.File(settings_cls, config_folder() / _FILE_NAME),
        )


_Settings = TypeVar("_Settings", bound=_FromFileAndEnvironment)


class Settings(_FromFileAndEnvironment):
    """Everything that can be set. Construct it with `load`."""

    postgres: PostgresSettings
    kafka: KafkaSettings
    elasticsearch: ElasticsearchSettings
    relay: RelaySettings = RelaySettings()
    worker: WorkerSettings = WorkerSettings()
    refresher: RefresherSettings = RefresherSettings()
    watch: WatchSettings = WatchSettings()
    web: WebSettings = WebSettings()
    metrics: MetricsSettings = MetricsSettings()
    traces: TracesSettings = TracesSettings()
    log: LogSettings = LogSettings()


class SourceSettings(_FromFileAndEnvironment):
    """What a command needs that talks to Postgres alone. Construct it with `load_source`."""

    model_config = SettingsConfigDict(extra="ignore")

    postgres: PostgresSettings
    log: LogSettings = LogSettings()


class SearchSettings(_FromFileAndEnvironment):
    """What a command needs that talks to Elasticsearch alone. Construct it with `load_search`."""

    model_config = SettingsConfigDict(extra="ignore")

    elasticsearch: ElasticsearchSettings
    log: LogSettings = LogSettings()


def config_folder() -> Path:
    """The config folder: ``SYNCER_CONFIG``, or ``config`` below the working directory."""
    return Path(os.environ.get("SYNCER_CONFIG") or _DEFAULT_CONFIG_FOLDER)


def load() -> Settings:
    """Read and validate all settings.

    Raises:
        ConfigError: The file is not YAML, or a setting is missing, unknown or of the wrong kind.
    """
    return _load(Settings)


def load_source() -> SourceSettings:
    """Read and validate what concerns Postgres alone.

    Raises:
        ConfigError: As `load`.
    """
    return _load(SourceSettings)


def load_search() -> SearchSettings:
    """Read and validate what concerns Elasticsearch alone.

    Raises:
        ConfigError: As `load`.
    """
    return _load(SearchSettings)


def _is_token(said: str) -> bool:
    """Whether it is long enough, and what a header may carry as it is."""
    return len(said) >= TOKEN_CHARACTERS_MIN and said.isascii() and said.isprintable() and said == said.strip()


def _load(kind: type[_Settings]) -> _Settings:
    file = config_folder() / _FILE_NAME
    try:
        return kind()
    except yaml.YAMLError as error:
        # What the parser says may quote a secret.
        raise ConfigError(f"{file} is not valid YAML{_place(error)}", hint=_FILE_HINT) from None
    except ValidationError as error:
        raise ConfigError(_sentence(error), hint=_hint(file)) from error
    except SettingsError as error:
        raise ConfigError(
            f"An environment variable is not valid: {error}",
            hint='One that holds several values is a JSON object, as in SYNCER_KAFKA_PROPERTIES=\'{"acks": "all"}\'',
        ) from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint=_FILE_HINT) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{file} does not hold sections of settings", hint=_FILE_HINT) from error


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _sentence(error: ValidationError) -> str:
    problems = [_problem(one) for one in error.errors(include_url=False, include_input=False)]
    return "The settings are not valid: " + "; ".join(problems)


def _problem(problem: ErrorDetails) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{_REQUIRED.get(name, name)} is not set"
    return f"{name}: {_SAID.get(problem['type'], problem['msg'].removeprefix('Value error, ').lower())}"


def _hint(file: Path) -> str:
    read = f"{file} was read" if file.exists() else f"{file} does not exist"
    return (
        f"Each setting comes from the file or from an environment variable ({read}).\n"
        "The three that have no default: SYNCER_POSTGRES_DSN, SYNCER_KAFKA_BOOTSTRAP_SERVERS, "
        "SYNCER_ELASTICSEARCH_URL.\n"
        'For servers to try it on: eval "$(syncer sandbox start)"'
    )
