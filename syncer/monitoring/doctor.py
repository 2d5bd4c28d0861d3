"""Doctor: `CHECKS` is one table of what the guarantees rest on: what is expected, how it is asked, and what a fix is.

Asking yields a finding, with its fix, for each problem. Mostly it is a query whose rows are these, or a setting of an
index or of the topic. A check that a missing server, schema or privilege prevents is unseen; the others are still made.
docs/operating.md says why each matters. What ails a document is in `syncer status`.

Guarantees that nothing is changed: every transaction in Postgres is read-only and every statement bounded in time, and
Kafka and Elasticsearch are only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from elastic_transport import TransportError
from elasticsearch import ApiError, Elasticsearch

from syncer.apply import cost
from syncer.base import migrations, postgres
from syncer.base.error_policy import explain
from syncer.base.errors import SourceError, SyncerError, TopicError
from syncer.base.model import WRITE_SUFFIX, Role
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.capture import install
from syncer.documents import queries, registry
from syncer.documents.registry import Document
from syncer.documents.snapshot import Tries
from syncer.elasticsearch import client as elastic
from syncer.elasticsearch.indices import is_write_alias
from syncer.elasticsearch.reader import Holdings, in_lines
from syncer.elasticsearch.record import Record, version as record_version
from syncer.elasticsearch.shortcomings import Effect, request
from syncer.indexing import failover, marks
from syncer.kafka import topic

ANSWER_SECONDS = 5
"""How long a server may take to be reached, and to answer."""
_ERRORS = (psycopg.Error, KafkaException, ApiError, TransportError, SyncerError)
"""What keeps a check from being made."""
_EPOCHS_USED = failover.EPOCHS * 9 // 10
_READ_ONLY = f"SET default_transaction_read_only = on; SET statement_timeout = '{ANSWER_SECONDS}s'"


class CheckSeverity(StrEnum):
    """How bad a finding is: a guarantee does not hold, an operator should decide, or the check could not be made."""

    WRONG = "wrong"
    CONSIDER = "consider"
    UNSEEN = "unseen"
    WELL = "well"


class How(StrEnum):
    """What a fix is: statements for psql, a command, a request to Elasticsearch, or what a person has to decide."""

    SQL = "sql"
    SHELL = "shell"
    REQUEST = "request"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: the problem, or why it could not be made, as a sentence without a full stop; else empty.

    What is None or empty is as the check says. ``note`` is what to know about the fix.
    """

    found: str = ""
    fix: str = ""
    note: str = ""
    how: How | None = None
    severity: CheckSeverity | None = None
    id: str = ""
    expected: str = ""


class Deployment:
    """The servers that the settings name, and what several checks ask of them."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings = settings
        self.servers: dict[str, Any] = {}
        """A client of each server that is used, or the `SyncerError` that kept it from being opened."""
        self._stack = stack
        connects: dict[str, Callable[[], Any]] = {"postgres": self._connect, "elasticsearch": self._reach}
        if settings.kafka.is_used:
            connects["kafka"] = self._administer
        for name, connect in connects.items():
            try:
                self.servers[name] = connect()
            except _ERRORS as error:
                self.servers[name] = explain(error) or SyncerError(str(error))
        with suppress(*_ERRORS):  # the checks name it
            self.settings = settings.of(registry.installation(self.schema))

    def _connect(self) -> Connection:
        connection = self._stack.enter_context(postgres.connect(self.settings.postgres, name="doctor"))
        connection.execute(_READ_ONLY)
        return connection

    def _administer(self) -> AdminClient:
        admin = self._stack.enter_context(AdminClient(topic.common(self.settings.kafka) | {"log_level": 0}))
        admin.list_topics(timeout=ANSWER_SECONDS)
        return admin

    def _reach(self) -> Elasticsearch:
        client = elastic.connect(self.settings.elasticsearch, timeout_seconds=ANSWER_SECONDS)
        return self._stack.enter_context(client)

    def server(self, name: str) -> Any:
        """A client of a server."""
        if isinstance(self.servers[name], SyncerError):
            raise SourceError(f"{name.title()} cannot be reached")
        return self.servers[name]

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows that a query of Postgres returns."""
        rows: list[tuple[Any, ...]] = self.server("postgres").execute(query, parameters).fetchall()
        return rows

    @cached_property
    def schema(self) -> Connection:
        """The connection to Postgres, if it has the syncer schema."""
        if self.rows("SELECT to_regclass('syncer.document') IS NOT NULL") != [(True,)]:
            raise SourceError("the database has no syncer schema")
        connection: Connection = self.server("postgres")
        return connection

    @cached_property
    def documents(self) -> list[Document]:
        """The active definitions, with one entry for each index that they write to."""
        return registry.documents(self.schema)

    @cached_property
    def topic(self) -> TopicMetadata | None:
        """The topic of changes; None if Kafka does not have it."""
        if not self.settings.kafka.topic:
            raise TopicError("the name of the topic is unknown: it is in the database")
        topics: dict[str, TopicMetadata] = self.server("kafka").list_topics(timeout=ANSWER_SECONDS).topics
        return topics.get(self.settings.kafka.topic)


Ask = Callable[[Deployment], Iterable[Finding]]


class Check(NamedTuple):
    """A row of the table: what holds if all is well, how it is asked, what its fixes are, and how bad a problem is."""

    id: str
    expected: str
    how: How
    ask: Ask
    severity: CheckSeverity = CheckSeverity.WRONG

    @property
    def server(self) -> str:
        """The server that is asked."""
        return self.id.partition(".")[0]


# Postgres: a query returns a row for each problem, with its fix

# What a new session of the role gets: our own sessions pin some settings.
_OFF = """
SELECT name || ' is off', format(E'ALTER SYSTEM SET %s = on;\\nSELECT pg_reload_conf();', name)
FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND reset_val = 'off'
"""
_COMMITS_OFF = """
WITH off AS (
    SELECT concat_ws(' IN ', CASE WHEN setrole <> 0 THEN 'ROLE ' || quote_ident(r.rolname)
                                  WHEN setdatabase = 0 THEN 'ROLE ALL' END,
                     'DATABASE ' || quote_ident(d.datname)) AS part
    FROM pg_db_role_setting LEFT JOIN pg_roles AS r ON r.oid = setrole LEFT JOIN pg_database AS d ON d.oid = setdatabase
    WHERE 'synchronous_commit=off' = ANY (setconfig) AND (setdatabase = 0 OR d.datname = current_database())
)
SELECT 'synchronous_commit is off for ' || part, format('ALTER %s RESET synchronous_commit;', part) FROM off
UNION ALL
SELECT 'synchronous_commit is off', E'ALTER SYSTEM SET synchronous_commit = on;\\nSELECT pg_reload_conf();'
FROM pg_settings WHERE name = 'synchronous_commit' AND reset_val = 'off' AND NOT EXISTS (SELECT FROM off)
"""
_FUNCTIONS = """
SELECT format('%s, which owns the function %s, may not write the outbox', owner, name),
       format(E'GRANT USAGE ON SCHEMA syncer TO %1$s;\nGRANT INSERT ON syncer.outbox TO %1$s;\n'
              'GRANT USAGE ON SEQUENCE syncer.outbox_segment, syncer.lost TO %1$s;'
              '\nGRANT EXECUTE ON FUNCTION syncer.text_of(anyelement,integer) TO %1$s;', owner)
FROM (
    SELECT p.oid::regprocedure AS name, p.proowner, quote_ident(r.rolname) AS owner
    FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner
    WHERE p.pronamespace = 'syncer'::regnamespace AND p.prorettype = 'trigger'::regtype AND p.proname LIKE 'capture%'
) AS f
WHERE NOT (has_schema_privilege(proowner, 'syncer', 'USAGE')
           AND has_table_privilege(proowner, 'syncer.outbox', 'INSERT')
           AND (has_sequence_privilege(proowner, 'syncer.outbox_segment', 'USAGE')
                OR has_sequence_privilege(proowner, 'syncer.outbox_segment', 'SELECT'))
           AND has_sequence_privilege(proowner, 'syncer.lost', 'USAGE')
           AND has_function_privilege(proowner, 'syncer.text_of(anyelement,integer)', 'EXECUTE'))
"""
# One privilege for each group role in docs/roles.sql that a daemon's role has; not every daemon needs all.
_LACKING = """
SELECT current_user || ' may not use the schema syncer', true
FROM pg_namespace WHERE nspname = 'syncer' AND NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT format('%I has no %s on syncer.%s', current_user, privilege, c.relname), false
FROM (VALUES ('outbox_0', 'TRUNCATE'), ('cursor', 'INSERT'), ('daemon', 'INSERT'), ('job_chunk', 'INSERT'),
             ('version', 'USAGE')) AS needed (name, privilege)
JOIN pg_namespace AS n ON n.nspname = 'syncer' AND has_schema_privilege(n.oid, 'USAGE')
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = needed.name
WHERE NOT CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, privilege)
               ELSE has_table_privilege(c.oid, privilege) END
"""
_SUPERUSER = "SELECT FROM pg_roles WHERE rolname = current_user AND rolsuper"
# Also a table of which it may read the columns that documents show is locked against ALTER TABLE, as a whole.
_UNREADABLE = """
WITH r AS (
    SELECT asked.relation, quote_ident(n.nspname) AS schema, quote_ident(current_user) AS role,
           has_schema_privilege(n.oid, 'USAGE') AS may_enter, row_security_active(c.oid) AS is_filtered,
           has_table_privilege(c.oid, 'SELECT') AS may_read
    FROM unnest($1::text[]) AS asked (relation)
    JOIN pg_namespace AS n ON true JOIN pg_class AS c ON c.relnamespace = n.oid
    WHERE format('%I.%I', n.nspname, c.relname) = asked.relation
)
SELECT role || ' may not use the schema ' || schema, format('GRANT USAGE ON SCHEMA %s TO %s;', schema, role)
FROM r WHERE NOT may_enter
UNION ALL SELECT role || ' may not read ' || relation, format('GRANT SELECT ON %s TO %s;', relation, role)
FROM r WHERE NOT may_read
UNION ALL
SELECT format('Row-level security of %s hides rows from %s', relation, role), format('ALTER ROLE %s BYPASSRLS;', role)
FROM r WHERE is_filtered ORDER BY 1
"""
_IS_WORKER = "SELECT has_sequence_privilege('syncer.version', 'USAGE')"


def _query(query: str) -> Ask:
    """A query that returns problems and their fixes."""

    def ask(deployment: Deployment) -> Iterable[Finding]:
        connection = deployment.schema if "syncer" in query else deployment.server("postgres")
        return [Finding(problem, fix) for problem, fix in connection.execute(query)]

    return ask


def _reach(server: str, further: Ask = lambda _: ()) -> Ask:
    """Whether a server was reached; if so, further questions."""

    def ask(deployment: Deployment) -> Iterable[Finding]:
        client = deployment.servers[server]
        return [Finding(client.message, client.hint)] if isinstance(client, SyncerError) else further(deployment)

    return ask


def _is_usable(deployment: Deployment) -> Iterator[Finding]:
    if deployment.rows("SELECT pg_is_in_recovery()") == [(True,)]:
        fix = "Set SYNCER_POSTGRES_DSN to the primary; from several hosts, target_session_attrs=read-write chooses it."
        yield Finding("The server at postgres.dsn is a standby", fix)
        return
    try:
        migrations.require_current(deployment.server("postgres"))
    except SourceError as error:
        yield Finding(error.message, error.hint)
        return
    fix = "Once no daemon of an earlier version runs: syncer migrate"
    for name in migrations.postponed(deployment.server("postgres")):
        yield Finding(f"The migration {name} is not applied", fix, severity=CheckSeverity.CONSIDER)


def _triggers(deployment: Deployment) -> Iterator[Finding]:
    relations = sorted({table for document in deployment.documents for table in document.dependencies.tables})
    captures = install.captured(deployment.schema)
    existing = install.existing(deployment.schema, relations)
    lost = {*install.lost(deployment.schema, relations), *(set(relations) - captures.keys())}
    outdated = install.outdated(deployment.schema, captures.values())
    for relation in relations:
        if relation not in existing:
            yield Finding(f"{relation} is gone, or has another name", "What to do: syncer status", how=How.ADVICE)
        elif relation in outdated:
            problem = f"The trigger function of {relation} is not what this syncer makes on this version of Postgres"
            yield Finding(problem, "syncer apply")
        elif relation in lost:
            yield Finding(f"{relation} lacks its triggers, or they are disabled", "syncer apply")


def _may_use(deployment: Deployment) -> Iterator[Finding]:
    roles = "If this is a daemon's role: run docs/roles.sql, and make it a member of the group roles of its duties."
    if deployment.rows(_SUPERUSER):
        problem = (
            "The role of postgres.dsn is a superuser: code that owners of your tables have written runs with its rights"
        )
        fix = "Connect as a role that is none: docs/security.md, Roles and grants."
        yield Finding(problem, fix, severity=CheckSeverity.CONSIDER)
    for problem, is_wrong in deployment.rows(_LACKING):
        yield Finding(problem, roles, severity=CheckSeverity.WRONG if is_wrong else CheckSeverity.CONSIDER)


def _may_read(deployment: Deployment) -> Iterator[Finding]:
    relations = {
        str(name)
        for document in deployment.documents
        for name in (*document.dependencies.tables, *document.dependencies.views)
    }
    problems = dict(deployment.rows(_UNREADABLE, sorted(relations)))
    # A relay reads no table of an application.
    severity = None if deployment.rows(_IS_WORKER) == [(True,)] else CheckSeverity.CONSIDER
    yield from (Finding(problem, fix, severity=severity) for problem, fix in problems.items())


def _indexes(deployment: Deployment) -> Iterator[Finding]:
    missing_indexes = list[cost.MissingIndex]()
    with closing(Tries(deployment.schema, seconds=cost.SECONDS_MAX)) as tries:
        for document in (document for document in deployment.documents if document.suspended is None):
            for use in document.dependencies.tables.values():
                for *_, lacking in cost.of_changes(tries, document.name, use):
                    missing_indexes += lacking
            ids = queries.first_ids(tries, document.dependencies.canonical_select, limit=1)
            missing_indexes += cost.of_build(tries, document, ids)[1]
    for missing in cost.ranked(missing_indexes):
        change = f"Each change of {missing.change_of} reads a whole table to find its documents of {missing.document}"
        build = f"To build a document of {missing.document}, a whole table is read"
        yield Finding(change if missing.change_of else build, missing.statement)


# Kafka and Elasticsearch: settings

_DAY_MILLISECONDS = 86_400_000
_TOPIC: dict[str, tuple[Callable[[str], bool], str, CheckSeverity]] = {
    "cleanup.policy": (lambda value: "compact" in value, "delete", CheckSeverity.WRONG),
    "unclean.leader.election.enable": (lambda value: value == "true", "false", CheckSeverity.WRONG),
    "retention.ms": (lambda value: 0 <= int(value) < _DAY_MILLISECONDS, "604800000", CheckSeverity.CONSIDER),
    "retention.bytes": (lambda value: int(value) >= 0, "-1", CheckSeverity.CONSIDER),
    "min.insync.replicas": (lambda value: value == "1", "2", CheckSeverity.CONSIDER),
}
"""Whether the value of a setting of the topic is wrong, the right one, and how bad that is."""


def _has_topic(deployment: Deployment) -> Iterable[Finding]:
    missing = Finding(f"Kafka has no topic {deployment.settings.kafka.topic}", "syncer apply", how=How.SHELL)
    return [] if deployment.topic else [missing]


def _topic(deployment: Deployment) -> Iterator[Finding]:
    settings, name = deployment.settings.kafka, deployment.settings.kafka.topic
    if deployment.topic is None:
        raise TopicError(f"Kafka has no topic {name}")
    has_copies = min(len(partition.replicas) for partition in deployment.topic.partitions.values()) > 1
    if not has_copies:
        more = (
            "Use three brokers. kafka.replication_factor applies to a topic that syncer creates; "
            "kafka-reassign-partitions.sh adds replicas to an existing one."
        )
        problem = "The topic has one replica: if its broker is lost, so are its changes"
        yield Finding(problem, more, how=How.ADVICE, severity=CheckSeverity.CONSIDER)
    values = topic.configuration(deployment.server("kafka"), name, seconds=ANSWER_SECONDS)
    for setting, (is_wrong, right, severity) in _TOPIC.items():
        if is_wrong(values[setting]) and (has_copies or setting != "min.insync.replicas"):
            credentials = " --command-config client.properties" if settings.properties else ""
            command = (
                f"kafka-configs.sh --bootstrap-server {settings.bootstrap_servers}{credentials} "
                f"--alter --entity-type topics --entity-name {name} --add-config {setting}={right}"
            )
            yield Finding(f"{setting} is {values[setting]}", command, severity=severity)


def _indices(deployment: Deployment) -> Iterator[Finding]:
    holdings = Holdings(deployment.server("elasticsearch"))
    for document in deployment.documents:
        is_current = document.role is Role.CURRENT
        for shortcoming in holdings.shortcomings(
            document.target,
            searched_as=document.index if is_current else "",
            has_routing=document.dependencies.has_routing,
        ):
            # A load has its own settings for a while.
            if shortcoming.effect is not Effect.IGNORED and (is_current or shortcoming.effect is not Effect.ENDANGERS):
                how = _REQUEST if shortcoming.is_request else _ADVICE
                yield Finding(shortcoming.problem, shortcoming.remedy, how=how)


def _orphans(deployment: Deployment) -> Iterator[Finding]:
    installation = registry.installation(deployment.schema)
    active_indices = {document.index_name for document in deployment.documents}
    active = {document.index for document in deployment.documents}
    asked: dict[str, Any] = {"expand_wildcards": "all", "filter_path": "*.aliases,*.mappings._meta.syncer"}
    existing: dict[str, Any] = {}
    for names in in_lines([f"*{WRITE_SUFFIX}-*", *sorted(f"{index}-*" for index in active)]):
        existing |= deployment.server("elasticsearch").indices.get(index=names, **asked).body
    for name, index in sorted(existing.items()):
        mark = index.get("mappings", {}).get("_meta", {}).get("syncer", {})
        if mark.get("installation") != installation or name in active_indices:
            continue
        aliases = {alias for alias in index.get("aliases", {}) if not is_write_alias(alias)}
        made_for = f"{name}, made for {mark.get('document')},"
        if not aliases:
            problem = f"{made_for} is not active any more"
            yield Finding(problem, request("DELETE", f"/{name}"), severity=CheckSeverity.CONSIDER)
        elif searched := sorted(aliases - active):  # status reports an alias that leads to two indices
            yield Finding(
                f"Searches of {' and '.join(searched)} find {made_for} which Postgres does not know",
                "syncer apply",
                f"It takes the index over, or makes another. Without a definition: DELETE /{name}",
                How.SHELL,
            )


def _epoch(deployment: Deployment) -> Iterator[Finding]:
    record = Record(deployment.server("elasticsearch"))
    mark = marks.last(deployment.schema)
    recorded, epoch = record.read(mark.installation), mark.epoch
    if recorded.epoch < epoch:
        version = f"version={record_version(epoch, mark.number)}&version_type=external_gte"
        yield Finding(
            f"Postgres is in epoch {epoch}, and syncer-state has recorded {recorded.epoch or 'none'}: it was "
            "deleted, or this database is a copy",
            request(
                "PUT",
                f"/syncer-state/_doc/epoch-{mark.installation}?{version}",
                {"epoch": epoch, "mark": mark.number, "entered_by": None},
            ),
            "Not if this database is a copy: then set kafka.topic. "
            "For a minute after the record was deleted, the answer may be 409.",
        )
    elif recorded.epoch > epoch:
        yield Finding(
            f"syncer-state has recorded epoch {recorded.epoch}, and Postgres is in {epoch}: another database of this "
            "installation is in use, or was until this one was restored",
            "Stop the daemons of the other one. Those of this database take over a minute later.",
            how=How.ADVICE,
        )
    if epoch >= _EPOCHS_USED:
        yield Finding(
            f"{failover.EPOCHS - 1 - epoch} epochs are left; each failover, restore and crash of Postgres uses one",
            "Plan a time to begin anew: syncer migrate --anew, and then: syncer apply --take-over '*'",
            how=How.ADVICE,
            severity=CheckSeverity.CONSIDER,
        )


_SQL, _SHELL, _REQUEST, _ADVICE, _CONSIDER = How.SQL, How.SHELL, How.REQUEST, How.ADVICE, CheckSeverity.CONSIDER
_USABLE = _reach("postgres", _is_usable)
_SETTINGS = "Every index keeps what is written to it, and shows it"
_FUNCTION = "The owner of the trigger functions may write the outbox"
CHECKS: tuple[Check, ...] = (
    Check("postgres.reach", "Postgres answers, takes writes and has this schema", _ADVICE, _USABLE),
    Check("postgres.durability", "fsync and full_page_writes are on", _SQL, _query(_OFF)),
    Check("postgres.synchronous_commit", "No commit is asynchronous", _SQL, _query(_COMMITS_OFF), _CONSIDER),
    Check("postgres.triggers", "Every table that documents read has its triggers", _SHELL, _triggers),
    Check("postgres.functions", _FUNCTION, _SQL, _query(_FUNCTIONS)),
    Check("postgres.privileges", "The role may do what a daemon does, and is no superuser", _ADVICE, _may_use),
    Check("postgres.reads", "The role may read every row that documents show", _SQL, _may_read),
    Check("postgres.indexes", "A changed row finds its documents by an index", _SQL, _indexes, _CONSIDER),
    Check("kafka.reach", "Kafka answers, and has the topic of changes", _ADVICE, _reach("kafka", _has_topic)),
    Check("kafka.topic", "The topic keeps every change until it is handled", _SHELL, _topic),
    Check("elasticsearch.reach", "The search server answers", _ADVICE, _reach("elasticsearch")),
    Check("elasticsearch.settings", _SETTINGS, _REQUEST, _indices),
    Check("elasticsearch.orphans", "Postgres knows every index that this installation made", _REQUEST, _orphans),
    Check("elasticsearch.epoch", "syncer-state has recorded the epoch", _REQUEST, _epoch),
)


def examine(settings: Settings, *, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Make these checks, or all, of the servers that are used: at least one finding of each, in their order."""
    with ExitStack() as stack:
        deployment = Deployment(settings, stack)
        used = [check for check in checks if check.server in deployment.servers]
        return [finding for check in used for finding in _findings(check, deployment)]


def _findings(check: Check, deployment: Deployment) -> list[Finding]:
    try:
        findings = list(check.ask(deployment)) or [Finding(severity=CheckSeverity.WELL)]
    except _ERRORS as error:
        findings = [Finding((explain(error) or SyncerError(str(error))).message, severity=CheckSeverity.UNSEEN)]
    return [
        replace(
            finding,
            id=check.id,
            expected=check.expected,
            how=finding.how or (check.how if finding.fix else None),
            severity=finding.severity or check.severity,
        )
        for finding in findings
    ]
