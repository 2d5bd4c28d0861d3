"""Settings from ``config/syncer.yaml`` and the environment, validated once and passed explicitly.

A `Settings` object is always valid. Environment variables override the file: ``SYNCER_POSTGRES_DSN`` overrides
``postgres.dsn``. ``SYNCER_CONFIG`` names another config folder. Docker, Kubernetes and systemd provide secrets as
files: ``SYNCER_POSTGRES_DSN_FILE`` names a file that holds the value of ``SYNCER_POSTGRES_DSN``, and so on.

Nothing is read at import. Secrets are `SecretStr`. No error shows a rejected value, the content of a file, or what
should be its path: that may be the secret itself, set by mistake.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
)

from syncer.base.errors import ConfigError

_TOKEN_CHARACTERS_MIN = 16
_PARAMETERS = {option.keyword.decode() for option in Conninfo.get_defaults()} | {"ssl"}
"""What the URI of a connection may set."""
CONFIG_VARIABLE = "SYNCER_CONFIG"
"""The environment variable that names the config folder."""
_DEFAULT_CONFIG_FOLDER = Path("config")
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_FILE_NAME = "syncer.yaml"
_FILE_HINT = "For example:\npostgres:\n  dsn: postgresql://user@host/database"
OWN_PROPERTIES = frozenset(
    {
        *("bootstrap.servers", "metadata.broker.list", "group.id", "group.protocol", "group.instance.id"),
        *("acks", "request.required.acks", "enable.idempotence", "transactional.id", "delivery.report.only.error"),
        *("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "auto.offset.reset"),
        *("enable.partition.eof", "partition.assignment.strategy", "group.protocol.type"),
        # What is sent and fetched together: memory is bounded, and a large change gets through.
        *("message.max.bytes", "queue.buffering.max.messages", "queued.max.messages.kbytes"),
        *("fetch.message.max.bytes", "max.partition.fetch.bytes", "fetch.max.bytes", "receive.message.max.bytes"),
        # When a record fails, and whether it is sent again.
        *("message.timeout.ms", "delivery.timeout.ms", "message.send.max.retries", "retries", "queuing.strategy"),
        *("max.in.flight", "max.in.flight.requests.per.connection", "enable.gapless.guarantee"),
        # How soon other partitions are noticed. A topic that a client creates by asking for it has one.
        *("topic.metadata.refresh.interval.ms", "topic.metadata.propagation.max.ms", "metadata.max.age.ms"),
        *("allow.auto.create.topics", "topic.blacklist", "test.mock.num.brokers"),
        # Not text, but code of the program's.
        *("on_delivery", "on_commit", "error_cb", "throttle_cb", "stats_cb", "oauth_cb", "logger"),
        *("default.topic.config", "offset.store.method", "fetch.queue.backoff.ms"),
    }
)
"""The librdkafka properties that a guarantee depends on, or that have a setting of their own."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


class PostgresSettings(_Section):
    """The source database. The connection string has the password, TLS options and ``connect_timeout``."""

    dsn: SecretStr
    """A libpq connection string: a URI or ``key=value`` pairs, including TLS options. The password is in it, in a
    ``passfile`` or in ``PGPASSWORD``. ``connect_timeout`` is 10 unless it is set. With several hosts, the first that
    accepts writes is used, unless ``target_session_attrs`` is set."""

    @property
    def conninfo(self) -> str:
        """The connection string for libpq, with our defaults."""
        dsn = self.dsn.get_secret_value()
        options = conninfo_to_dict(dsn)
        defaults = {"connect_timeout": "10"}  # libpq's own default is to wait for as long as the system does
        # libpq's own default is the first host that answers, be it a standby that takes no writes.
        if "," in f"{options.get('host')}{options.get('hostaddr')}":
            defaults["target_session_attrs"] = "read-write"
        return make_conninfo(dsn, **{name: value for name, value in defaults.items() if name not in options})

    @field_validator("dsn")
    @classmethod
    def _is_connection_string(cls, dsn: SecretStr) -> SecretStr:
        text = dsn.get_secret_value()
        scheme, is_uri, _ = text.partition("://")
        if is_uri and scheme.lower() not in ("postgresql", "postgres"):
            raise ValueError("it must begin with postgresql://, without the name of a driver")
        query = "" if "@" in text.partition("?")[2] else text.partition("?")[2]  # it may be a part of the password
        names = {parameter.partition("=")[0] for parameter in query.split("&")} if is_uri else set()
        if unknown := sorted(name for name in names - _PARAMETERS if name.isidentifier()):
            raise ValueError(f"libpq has no parameter {', '.join(unknown)}: remove what is for another client")
        authority, _, path = text.partition("://")[2].partition("/")
        is_cut = authority.count("@") > 1 or "@" in path.partition("?")[0]
        try:
            is_valid = not is_cut and set(str(conninfo_to_dict(text).get("port", ""))) <= set("0123456789,")
        except ProgrammingError:
            is_valid = False
        if not is_valid:
            # What libpq says may quote a part of the password, which it takes for a host or a port.
            raise ValueError(
                "not a connection string, as in postgresql://user:password@host:5432/database "
                "(in the password, write %40 for @, %2F for /, %25 for %)"
            ) from None
        return dsn


class KafkaSettings(_Section):
    """The topic of changes, if Kafka is used. The properties of its client have the password and TLS options."""

    bootstrap_servers: str = ""
    """Initial brokers as host:port, separated by commas. Empty: Kafka is not used, and one daemon at a time reads the
    outbox and writes the documents."""
    topic: str = ""
    """The topic of changes, created by ``apply``, and the consumer group of all workers. Default: ``syncer.changes.``
    followed by the id that ``syncer migrate`` gave this database. Databases must not share a topic."""
    partitions: PositiveInt = 12
    """Number of partitions when the topic is created; limits the number of busy worker threads."""
    replication_factor: Annotated[int, Field(ge=-1)] = -1
    """Replication factor when the topic is created; -1 uses the broker's default."""
    properties: Annotated[dict[str, str | int | bool], Field(repr=False)] = {}
    """Properties passed to librdkafka, such as ``security.protocol`` and ``sasl.password``. Those of the environment, a
    JSON object, are added to those of the file."""

    _installation: str = PrivateAttr("")

    @property
    def is_used(self) -> bool:
        """Whether changes go through Kafka."""
        return bool(self.bootstrap_servers)

    @property
    def installation(self) -> str:
        """The id of the database whose changes are in the topic; empty before `Settings.of`."""
        return self._installation

    @field_validator("properties")
    @classmethod
    def _keep_guarantees(cls, properties: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
        if fixed := sorted(properties.keys() & OWN_PROPERTIES):
            raise ValueError(f"{' and '.join(fixed)} cannot be set, since syncer relies on its value: remove it here")
        return properties


class ElasticsearchSettings(_Section):
    """The Elasticsearch cluster that contains the documents."""

    url: Annotated[str, Field(repr=False)]
    """URL with port, such as ``https://search:9200``. Separate several nodes of one cluster with commas: if one is
    unreachable, another is used."""
    username: str | None = None
    """User name, for authentication with a password."""
    password: SecretStr | None = None
    """The user's password."""
    api_key: SecretStr | None = None
    """API key, in the encoded form that Elasticsearch returns."""
    ca_certs: Path | None = None
    """File with CA certificates. Default: the system's."""

    @property
    def urls(self) -> list[str]:
        """The address of each node."""
        return [url.strip() for url in self.url.split(",")]

    @field_validator("url")
    @classmethod
    def _has_addresses(cls, url: str) -> str:
        # What the client says of a wrong one quotes it, with the password that may be in it.
        try:
            is_valid = all(
                node.scheme in ("http", "https") and node.hostname and node.port and "@" not in "".join(node[2:])
                for node in (urlsplit(address.strip()) for address in url.split(","))
            )
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ValueError("not an address with its port, as in http://localhost:9200, https://search:9200") from None
        return url


class RelaySettings(_Section):
    """The reader of the outbox; with Kafka, the relay."""

    poll_seconds: Annotated[float, Field(gt=0, le=5)] = 0.05
    """Interval at which the outbox is polled. Changes of one interval are handled together: a longer one reduces load
    and increases lag."""
    outbox_bytes_max: Annotated[ByteSize, Field(gt=0)] = ByteSize(10 * 1000**3)
    """Maximum size of the outbox on the disk of Postgres, such as `10GB`. A larger backlog is given up: the outbox is
    emptied, and every document is refreshed instead. Nothing is lost."""


class WorkerSettings(_Section):
    """Workers, from changes to documents in Elasticsearch."""

    threads: NonNegativeInt = 1
    """Number of workers in this daemon, each with writers of its own. A second one splits batches. It helps only if
    Kafka is used and the worker waits for its servers. With 0, it runs only a job worker and logs a warning."""
    batch_documents_max: PositiveInt = 1000
    """Maximum documents in a batch of a worker, and in a chunk of a job. A change that affects more documents becomes a
    fan-out job."""
    in_flight_max: PositiveInt = 4
    """Maximum bulk requests in flight per worker, and per job worker; each uses a Postgres connection."""


class WebSettings(_Section):
    """The status page, metrics and health checks."""

    host: str = "127.0.0.1"
    """Address to listen on. Remote clients need the token for everything except metrics and health checks."""
    port: Annotated[int, Field(ge=0, le=65535)] | None = 8765
    """Port; 0 for any free port, ``none`` for no page. If it is not set, the first free port of ten is used."""
    token: SecretStr | None = None
    """Token for row values and, on other machines, for everything except metrics and health checks."""

    @field_validator("port", mode="before")
    @classmethod
    def _may_be_none(cls, port: object) -> object:
        return None if isinstance(port, str) and port.lower() == "none" else port

    @field_validator("token")
    @classmethod
    def _is_token(cls, token: SecretStr | None) -> SecretStr | None:
        text = token.get_secret_value() if token is not None else ""
        # It must be what a header can carry as it is.
        is_valid = len(text) >= _TOKEN_CHARACTERS_MIN and text.isascii() and text.isprintable() and text == text.strip()
        if token is not None and not is_valid:
            raise ValueError(f"a token has at least {_TOKEN_CHARACTERS_MIN} characters of ASCII: openssl rand -hex 32")
        return token


Level = Literal["debug", "info", "warning", "error"]


class LogSettings(_Section):
    """Log format and level."""

    format: Literal["auto", "json", "console"] = "auto"
    """Format; ``auto`` uses console on a terminal and JSON elsewhere."""
    level: Level = "info"
    """Minimum level; ``debug`` logs a line for each batch and for each document written."""


class Settings(_Section):
    """Everything that can be set. Read it with `load`."""

    postgres: PostgresSettings
    elasticsearch: ElasticsearchSettings
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    relay: RelaySettings = Field(default_factory=RelaySettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    web: WebSettings = Field(default_factory=WebSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    def of(self, installation: str) -> Settings:
        """The settings for the database with this id, with default names filled in."""
        kafka = self.kafka.model_copy(update={"topic": self.kafka.topic or f"syncer.changes.{installation}"})
        kafka._installation = installation  # noqa: SLF001 - it is no setting
        return self.model_copy(update={"kafka": kafka})


def config_folder() -> Path:
    """The config folder: ``SYNCER_CONFIG``, or ``config`` below the working directory."""
    return Path(os.environ.get(CONFIG_VARIABLE) or _DEFAULT_CONFIG_FOLDER)


def shipped(name: Literal["migrations", "config", "docs"]) -> Path:
    """Return a folder that ships with the package: in a wheel inside of it, in a checkout beside it."""
    package = Path(__file__).parent.parent
    in_wheel = package / "_shipped" / name
    return in_wheel if in_wheel.is_dir() else package.parent / name


def load() -> Settings:
    """Read and validate all settings.

    Raises:
        ConfigError: The file is not YAML, or a setting is missing, unknown or of the wrong kind.
    """
    file = config_folder() / _FILE_NAME
    sections = {section: {} for section in Settings.model_fields} | _read_file(file)
    for variable, value in os.environ.items():
        prefix, _, key = variable.partition("_")
        section, _, name = key.lower().partition("_")
        if prefix != "SYNCER" or section not in Settings.model_fields or not value:
            continue
        text = _read_secret(variable, value) if name.endswith("_file") else value
        name = name.removesuffix("_file")
        if isinstance(of_file := sections[section], dict):
            of_file[name] = _added(of_file.get(name), variable, text) if name == "properties" else text
    # The first call builds the validator. An interrupt during that would look like an error of pydantic, or be lost.
    former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        return Settings.model_validate(sections)
    except ValidationError as error:
        raise _invalid(error, file) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        sections = yaml.safe_load(file.read_bytes()) if file.exists() else {}
    except (yaml.YAMLError, RecursionError) as error:
        # What the parser says may quote a secret.
        mark = getattr(error, "problem_mark", None)
        position = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{file} is not valid YAML{position}", hint=_FILE_HINT) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint=_FILE_HINT) from error
    if not isinstance(sections or {}, dict):
        raise ConfigError(f"{file} does not contain sections of settings", hint=_FILE_HINT)
    return {name: settings for name, settings in (sections or {}).items() if settings is not None}


def _read_secret(variable: str, file: str) -> str:
    """Return the value that is in the file which a variable names. The error is not chained: it quotes the path."""
    if os.environ.get(variable.removesuffix("_FILE")):
        raise ConfigError(f"{variable.removesuffix('_FILE')} and {variable} are both set", hint="Unset one of them.")
    try:
        if content := Path(file).read_text("utf-8").rstrip("\r\n"):
            return content
        reason = "is empty"
    except (OSError, ValueError) as error:  # the latter if it is not UTF-8, or has a zero byte
        reason = f"cannot be read: {getattr(error, 'strerror', 'it is not UTF-8 text')}"
    raise ConfigError(
        f"The file that {variable} names {reason}",
        hint="Name a file that holds the value and nothing else. The user that runs syncer must be able to read it.",
    )


def _added(properties: object, variable: str, text: str) -> dict[str, Any]:
    """Return the properties of the file with those of a variable, a JSON object."""
    try:
        return {**(properties if isinstance(properties, dict) else {}), **json.loads(text)}
    except (ValueError, TypeError):
        raise ConfigError(
            f"{variable} is not a JSON object", hint=f'For example: {variable}=\'{{"security.protocol": "SSL"}}\''
        ) from None


def _invalid(error: ValidationError, file: Path) -> ConfigError:
    """Name each setting that is not valid; of an unknown one, say what its section has instead."""
    problems, hints = [], []
    for problem in error.errors(include_url=False, include_input=False):
        name = ".".join(map(str, problem["loc"]))
        if problem["type"] == "missing":
            problems.append(f"{name} is not set")
        elif problem["type"] == "model_type":
            problems.append(f"{name} is a section: its settings follow on lines of their own, indented")
        elif problem["type"] != "extra_forbidden":
            problems.append(f"{name}: {problem['msg'].removeprefix('Value error, ').lower()}")
        else:
            problems.append(f"{name}: unknown setting")
            section: Any = Settings.model_fields.get(str(problem["loc"][0]))
            if section is None:
                hints.append(f"The sections are: {', '.join(Settings.model_fields)}")
            else:
                names = ", ".join(section.annotation.model_fields)
                hints.append(f"{problem['loc'][0]} has: {names}. {section.annotation.__doc__}")
    if not hints:
        exists = "was read" if file.exists() else "does not exist"
        variables = ", ".join("_".join(["SYNCER", *map(str, problem["loc"])]).upper() for problem in error.errors())
        hints = [f"A setting comes from the file ({file} {exists}) or from an environment variable: {variables}"]
    if any(problem.endswith(" is not set") for problem in problems):
        hints += ['To start local servers for experiments: eval "$(syncer sandbox start)"']
    return ConfigError("The settings are not valid: " + "; ".join(problems), hint="\n".join(hints))
