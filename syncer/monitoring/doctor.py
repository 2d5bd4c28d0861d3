"""Doctor: `CHECKS` is one table of what the guarantees rest on: what is expected, how it is asked, and what a fix is.

Asking yields a finding, with its fix, for each problem. Mostly it is a query whose rows are these, or a setting of an
index or of the topic. A check that a missing server, schema or privilege prevents is unseen; the others are still made.
docs/operating.md says why each matters. Of what `syncer status` and `plan` report, only a suspended document and a
lost index are checked again here.

The checks ``reach`` ask what guards the start of a daemon: see `syncer.daemon.checked`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from syncer.base import migrations
from syncer.base.error_policy import explain
from syncer.base.errors import SourceError, SyncerError
from syncer.base.model import Role, Target
from syncer.base.postgres import LOCK_SECONDS_MAX
from syncer.base.settings import Settings
from syncer.capture import install
from syncer.documents import definition, registry
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import GC_DELETES_SECONDS, PIPELINES, seconds
from syncer.indexing import failover
from syncer.kafka import topic
from syncer.monitoring.deployment import ANSWER_SECONDS, ERRORS, Deployment, UnseenError


class Severity(StrEnum):
    """How bad a finding is."""

    WRONG = "wrong"
    """A guarantee does not hold, or will not."""
    CONSIDER = "consider"
    """The guarantees hold, but an operator should decide whether this is intended."""
    UNSEEN = "unseen"
    """The check could not be made."""
    WELL = "well"


class How(StrEnum):
    """What a fix is."""

    SQL = "sql"
    """Statements for psql, one a line."""
    SHELL = "shell"
    """A command."""
    ADVICE = "advice"
    """For a person to decide."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: the problem, or why it could not be made, as a sentence without a full stop; else empty.

    What is empty or None is as the check says.
    """

    found: str = ""
    fix: str = ""
    how: How | None = None
    note: str | None = None
    severity: Severity | None = None
    id: str = ""
    expected: str = ""


Ask = Callable[[Deployment], Iterable[Finding]]


class Check(NamedTuple):
    """A row of the table: what holds if all is well, how it is asked, what its fixes are, and how bad a problem is."""

    id: str
    expected: str
    how: How
    ask: Ask
    severity: Severity = Severity.WRONG
    note: str = ""

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
    SELECT CASE WHEN r.rolname IS NOT NULL THEN quote_ident(r.rolname) WHEN s.setdatabase = 0 THEN 'ALL' END AS role,
           quote_ident(d.datname) AS database
    FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS setting
    LEFT JOIN pg_roles AS r ON r.oid = s.setrole LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
    WHERE setting = 'synchronous_commit=off' AND (s.setdatabase = 0 OR d.datname = current_database())
)
SELECT 'synchronous_commit is off for ' || coalesce(role, database),
       format('ALTER %s RESET synchronous_commit;', concat_ws(' IN ', 'ROLE ' || role, 'DATABASE ' || database))
FROM off
UNION ALL
SELECT 'synchronous_commit is off', E'ALTER SYSTEM SET synchronous_commit = on;\\nSELECT pg_reload_conf();'
FROM pg_settings WHERE name = 'synchronous_commit' AND reset_val = 'off' AND NOT EXISTS (SELECT FROM off)
ORDER BY 1
"""
_DEADLOCK_TIMEOUT = f"""
SELECT format('deadlock_timeout is %s ms', reset_val),
       E'ALTER SYSTEM SET deadlock_timeout = ''1s'';\\nSELECT pg_reload_conf();'
FROM pg_settings WHERE name = 'deadlock_timeout' AND reset_val::integer <= {LOCK_SECONDS_MAX * 1000:.0f}
"""
_FUNCTIONS = """
SELECT format('%s, which owns the function %s, may not write the outbox', owner, name),
       format(E'GRANT USAGE ON SCHEMA syncer TO %1$s;\nGRANT INSERT ON syncer.outbox TO %1$s;\n'
              'GRANT USAGE ON SEQUENCE syncer.outbox_segment TO %1$s;'
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
           AND has_function_privilege(proowner, 'syncer.text_of(anyelement,integer)', 'EXECUTE'))
"""
_MAY_NOT_USE = "SELECT FROM pg_namespace WHERE nspname = 'syncer' AND NOT has_schema_privilege(oid, 'USAGE')"
# One privilege for each group role in docs/roles.sql that a daemon's role has.
_LACKING = """
SELECT format('%I has no %s on syncer.%s', current_user, privilege, c.relname)
FROM (VALUES ('outbox_0', 'TRUNCATE'), ('cursor', 'INSERT'), ('daemon', 'INSERT'), ('job_chunk', 'INSERT'),
             ('version', 'USAGE')) AS needed (name, privilege)
JOIN pg_class AS c ON c.relnamespace = 'syncer'::regnamespace AND c.relname = needed.name
WHERE NOT CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, privilege)
               ELSE has_table_privilege(c.oid, privilege) END
"""
_UNREADABLE = """
WITH r AS (
    SELECT quote_ident(n.nspname) AS schema, quote_ident(current_user) AS role,
           has_schema_privilege(n.oid, 'USAGE') AS may_enter, row_security_active(c.oid) AS is_filtered,
           has_table_privilege(c.oid, 'SELECT') OR (
               SELECT bool_and(has_column_privilege(c.oid, a.attnum, 'SELECT')) FROM pg_attribute AS a
               WHERE a.attrelid = c.oid AND a.attname = ANY ($2) AND NOT a.attisdropped) AS may_read
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE format('%I.%I', n.nspname, c.relname) = $1
)
SELECT role || ' may not use the schema ' || schema, format('GRANT USAGE ON SCHEMA %s TO %s;', schema, role)
FROM r WHERE NOT may_enter
UNION ALL SELECT role || ' may not read ' || $1, format('GRANT SELECT ON %s TO %s;', $1, role) FROM r WHERE NOT may_read
UNION ALL
SELECT format('Row-level security of %s hides rows from %s', $1, role), format('ALTER ROLE %s BYPASSRLS;', role)
FROM r WHERE is_filtered
"""
_IS_WORKER = "SELECT has_sequence_privilege('syncer.version', 'USAGE')"


def _sql(id_: str, expected: str, query: str, severity: Severity = Severity.WRONG) -> Check:
    """A query that returns problems and their fixes."""

    def ask(deployment: Deployment) -> Iterable[Finding]:
        connection = deployment.schema if "syncer" in query else deployment.server("postgres")
        return [Finding(found, fix) for found, fix in connection.execute(query)]

    note = "If nothing changes, the setting is on the server's command line." if "pg_reload_conf" in query else ""
    return Check(id_, expected, How.SQL, ask, severity, note)


def _reach(server: str, further: Ask = lambda _: ()) -> Ask:
    """Whether a server was reached; if so, further questions."""

    def ask(deployment: Deployment) -> Iterable[Finding]:
        found = deployment.servers[server]
        return [Finding(found.message, found.hint)] if isinstance(found, SyncerError) else further(deployment)

    return ask


def _is_usable(deployment: Deployment) -> Iterator[Finding]:
    if deployment.rows("SELECT pg_is_in_recovery()") == [(True,)]:
        yield Finding(
            "The server at postgres.dsn is a standby",
            "Set SYNCER_POSTGRES_DSN to the primary. To choose it from several hosts, add "
            "target_session_attrs=read-write.",
        )
        return
    try:
        migrations.require_current(deployment.server("postgres"))
    except SourceError as error:
        command = error.hint.removeprefix("Run: ")
        yield Finding(error.message, command, How.ADVICE if command == error.hint else How.SHELL)


def _triggers(deployment: Deployment) -> Iterator[Finding]:
    captures = install.captured(deployment.schema)
    for relation in sorted({each for document in deployment.documents for each in document.dependencies.tables}):
        capture = captures.get(relation)
        if capture is None or not install.is_installed(deployment.schema, relation):
            yield Finding(f"{relation} lacks its triggers, or they are disabled", "syncer apply")
        elif not install.is_current(deployment.schema, capture):
            yield Finding(f"The trigger function of {relation} is not the one that this version makes", "syncer apply")


def _may_use(deployment: Deployment) -> Iterator[Finding]:
    if deployment.rows(_MAY_NOT_USE):
        yield Finding("The role may not use the schema syncer", _ROLES)
    else:
        lacking = deployment.schema.execute(_LACKING)
        yield from (Finding(found, _ROLES, severity=Severity.CONSIDER) for (found,) in lacking)


def _may_read(deployment: Deployment) -> Iterator[Finding]:
    columns: dict[str, set[str]] = {}
    for document in deployment.documents:
        for relation, use in document.dependencies.tables.items():
            columns.setdefault(relation, set()).update(use.watched | use.routing)
        for view in document.dependencies.views:
            columns.setdefault(str(view), set())
    problems = {
        found: fix
        for relation, read in sorted(columns.items())
        for found, fix in deployment.rows(_UNREADABLE, relation, sorted(read))
    }
    # A relay reads no table of an application.
    severity = None if deployment.rows(_IS_WORKER) == [(True,)] else Severity.CONSIDER
    yield from (Finding(found, fix, severity=severity) for found, fix in problems.items())


# Kafka: settings of the topic


_DAY_MILLISECONDS = 86_400_000
_TOPIC: dict[str, tuple[Callable[[str], bool], str]] = {
    "cleanup.policy": (lambda value: "compact" in value, "delete"),
    "unclean.leader.election.enable": (lambda value: value == "true", "false"),
    "retention.ms": (lambda value: 0 <= int(value) < _DAY_MILLISECONDS, "604800000"),
    "retention.bytes": (lambda value: int(value) >= 0, "-1"),
    "min.insync.replicas": (lambda value: value == "1", "2"),
}
"""Whether the value of a setting of the topic is wrong, and the right one."""


def _topic(*names: str) -> Ask:
    """Settings of the topic."""

    def ask(deployment: Deployment) -> Iterator[Finding]:
        settings = deployment.settings.kafka
        credentials = " --command-config client.properties" if settings.properties else ""
        note = "client.properties holds the credentials, as Java clients read them." if credentials else ""
        found = topic.configuration(deployment.server("kafka"), deployment.topic.topic or "", seconds=ANSWER_SECONDS)
        for name in names:
            is_wrong, right = _TOPIC[name]
            if is_wrong(found[name]):
                command = (
                    f"kafka-configs.sh --bootstrap-server {settings.bootstrap_servers}{credentials} "
                    f"--alter --entity-type topics --entity-name {settings.topic} --add-config {name}={right}"
                )
                yield Finding(f"{name} is {found[name]}", command, note=note)

    return ask


def _has_topic(deployment: Deployment) -> Iterator[Finding]:
    name = deployment.settings.kafka.topic
    if not name:
        deployment.server("postgres")
        raise UnseenError("the name of the topic is unknown: it is in the database")
    if name not in deployment.topics:
        yield Finding(f"Kafka has no topic {name}", "syncer apply", How.SHELL)


def _replicas(deployment: Deployment) -> Iterable[Finding]:
    least = list(_topic("min.insync.replicas")(deployment))
    if min(len(partition.replicas) for partition in deployment.topic.partitions.values()) > 1:
        return least
    more = (
        "Use three brokers. kafka.replication_factor applies to a topic that syncer creates; "
        "kafka-reassign-partitions.sh adds replicas to an existing one."
    )
    return [Finding("The topic has one replica: if its broker is lost, so are its changes", more, How.ADVICE)]


# Documents


def _suspended(deployment: Deployment) -> Iterator[Finding]:
    for document in deployment.documents:
        if document.suspended is not None:
            what, _, hint = document.suspended.partition("\n")
            found = f"{document.name} is suspended, in {document.index_name}: {what.rstrip('; .')}"
            yield Finding(found, hint or "Fix it, then run: syncer apply")


def _lost(deployment: Deployment) -> Iterator[Finding]:
    names = {document.index_name for document, _ in deployment.indices}
    for document in deployment.documents:
        if document.index_name not in names:
            abort = f"syncer index abort {document.name}"
            fix = "syncer apply" if document.role is Role.CURRENT else abort
            yield Finding(f"The index {document.index_name} of {document.name} is gone", fix)


# Elasticsearch: settings of the indices


def _request(deployment: Deployment, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
    """A request to Elasticsearch as a command, with credentials named rather than shown."""
    settings = deployment.settings.elasticsearch
    words = ["curl -sS --fail-with-body -X", method]
    if settings.api_key:
        words.append('-H "Authorization: ApiKey $SYNCER_ELASTICSEARCH_API_KEY"')
    elif settings.username:
        words.append('-u "$SYNCER_ELASTICSEARCH_USERNAME:$SYNCER_ELASTICSEARCH_PASSWORD"')
    if settings.ca_certs:
        words.append(f"--cacert {settings.ca_certs}")
    node = "${SYNCER_ELASTICSEARCH_URL%%,*}" if len(settings.urls) > 1 else "$SYNCER_ELASTICSEARCH_URL"
    words.append(f'"{node}{path}"')
    if body is not None:
        words.append(f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'")
    return " ".join(words)


_KEPT = f"{GC_DELETES_SECONDS}s"
_INDEX: dict[str, tuple[str, Callable[[str], bool], str | None]] = {
    "index.gc_deletes": ("60s", lambda value: seconds(value) < GC_DELETES_SECONDS, _KEPT),
    "index.translog.durability": ("request", lambda value: value == "async", "request"),
    "index.refresh_interval": ("1s", lambda value: value.startswith("-1"), None),
    "index.lifecycle.name": ("", bool, None),
    **dict.fromkeys(PIPELINES, ("_none", lambda value: value != "_none", None)),
}
"""The default of a setting of an index, whether a value is wrong, and the right one."""


def _index(*names: str, is_current: bool = False) -> Ask:
    """Settings of each index, or of each current one."""

    def ask(deployment: Deployment) -> Iterator[Finding]:
        for document, settings in deployment.indices:
            for name in names if document.role is Role.CURRENT or not is_current else ():
                default, is_wrong, right = _INDEX[name]
                value = str(settings.get(name, default)).lower()
                if is_wrong(value):
                    fix = _request(deployment, "PUT", f"/{document.index_name}/_settings", {name: right})
                    yield Finding(f"{name} of {document.index_name} is {value}", fix)

    return ask


def _guard(deployment: Deployment) -> Iterator[Finding]:
    for document in deployment.documents[:1]:
        alias = document.target.write_alias
        fitting = [
            template
            for template in deployment.server("elasticsearch").indices.get_index_template()["index_templates"]
            if any(_fits(pattern, alias) for pattern in template["index_template"]["index_patterns"])
        ]
        first = max(fitting, key=_priority, default=None)
        if first is None or first["index_template"].get("allow_auto_create") is not False:
            priority = 500 if first is None else max(500, _priority(first) + 1)
            body = {"index_patterns": ["*-syncer-write"], "allow_auto_create": False, "priority": priority}
            yield Finding(
                "syncer's index template, which forbids to create an index named like a write alias, is "
                + ("missing" if first is None else f"overridden by {first['name']}"),
                _request(deployment, "PUT", "/_index_template/syncer", body),
            )


def _priority(template: Mapping[str, Any]) -> int:
    return int(template["index_template"].get("priority", 0))


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def _orphans(deployment: Deployment) -> Iterator[Finding]:
    installation = registry.installation(deployment.schema)
    known = {document.index_name for document in deployment.documents}
    active = {document.index for document in deployment.documents}
    names = [Target.of_index("*").write_alias, *sorted(f"{index}-*" for index in active)]
    made = deployment.server("elasticsearch").indices.get(
        index=names, expand_wildcards="all", filter_path="*.aliases,*.mappings._meta.syncer"
    )
    for name, index in sorted(made.items()):
        mark = index.get("mappings", {}).get("_meta", {}).get("syncer", {})
        if mark.get("installation") != installation or name in known:
            continue
        aliases = index.get("aliases", {}).keys() - {Target.of_index(name).write_alias}
        delete = _request(deployment, "DELETE", f"/{name}")
        made_for = f"{name}, made for {mark.get('document')},"
        if not aliases:
            yield Finding(f"{made_for} is not active any more", delete, severity=Severity.CONSIDER)
        elif searched := sorted(aliases - active):  # status reports an alias that leads to two indices
            is_defined = not _defined(deployment).isdisjoint(searched)
            note = "It takes the index over, or makes another, and writes every document." if is_defined else ""
            found = f"Searches of {' and '.join(searched)} find {made_for} which Postgres does not know"
            yield Finding(found, "syncer apply" if is_defined else delete, note=note)


def _defined(deployment: Deployment) -> set[str]:
    """The indices of the definitions in the config folder."""
    try:
        return {each.index for each in definition.load_all(deployment.config_folder)}
    except SyncerError:
        return set()


def _epoch(deployment: Deployment) -> Iterator[Finding]:
    index = Index(deployment.server("elasticsearch"))
    for installation, epoch in deployment.schema.execute("SELECT installation, epoch FROM syncer.cluster_identity"):
        recorded = index.read_epoch(installation)
        if recorded < epoch:
            path = f"/syncer-state/_doc/epoch-{installation}?version={epoch}&version_type=external_gte"
            yield Finding(
                f"Postgres is in epoch {epoch}, and Elasticsearch has recorded {recorded or 'none'}: syncer-state was "
                "deleted, or this database is a copy",
                _request(deployment, "PUT", path, {"epoch": epoch}),
                How.SHELL,
                "Not if this database is a copy: then set kafka.topic. "
                "For a minute after the record was deleted, Elasticsearch may answer 409.",
            )
        elif recorded > epoch and failover.is_entered(deployment.schema):
            # The next writer finds another cluster identity than the recorded one, and enters a new epoch.
            yield Finding(
                f"Elasticsearch has recorded epoch {recorded}, and Postgres is in {epoch}: its disk was restored",
                "UPDATE syncer.cluster_identity SET sequence = 0;",
                How.SQL,
                "Then restart the daemons, which enter a new epoch, and run for each document: "
                "syncer verify DOCUMENT --repair",
            )


_ROLES = "If this is a daemon's role: run docs/roles.sql, and make the role a member of the group roles of its duties."
_CATCHES_UP = "It installs them, and writes the documents again that may have missed changes."
_AGAIN = "Then write the documents again: syncer backfill DOCUMENT"
_SQL, _SHELL, _ADVICE, _CONSIDER = How.SQL, How.SHELL, How.ADVICE, Severity.CONSIDER
_ANSWERS = "Postgres answers, takes writes and has this schema"
_COMMITS = "No application commits with synchronous_commit off"
_DEADLOCKS = f"deadlock_timeout is longer than {LOCK_SECONDS_MAX:g} s"
_FORGETS = f"Every index remembers deletes for {_KEPT}"
_TRANSLOG = "No current index has an asynchronous translog"
_REFRESH = "Every current index is refreshed"
_ELECTION = "No broker that lacks records can lead"
_RETENTION = "The topic keeps changes for longer than an outage"
CHECKS: tuple[Check, ...] = (
    Check("postgres.reach", _ANSWERS, _ADVICE, _reach("postgres", _is_usable)),
    _sql("postgres.durability", "fsync and full_page_writes are on", _OFF),
    _sql("postgres.synchronous_commit", _COMMITS, _COMMITS_OFF, _CONSIDER),
    _sql("postgres.deadlock_timeout", _DEADLOCKS, _DEADLOCK_TIMEOUT, _CONSIDER),
    Check("postgres.triggers", "Every table that documents read has its triggers", _SHELL, _triggers, note=_CATCHES_UP),
    _sql("postgres.functions", "The owner of the trigger functions may write the outbox", _FUNCTIONS),
    Check("postgres.privileges", "The role may do what a daemon does", _ADVICE, _may_use),
    Check("postgres.suspended", "No document is suspended", _ADVICE, _suspended),
    Check("postgres.reads", "The role may read every row that documents show", _SQL, _may_read),
    Check("kafka.reach", "Kafka answers, and has the topic of changes", _ADVICE, _reach("kafka", _has_topic)),
    Check("kafka.replication", "Every record is on at least two brokers", _SHELL, _replicas, _CONSIDER),
    Check("kafka.cleanup_policy", "The topic is not compacted", _SHELL, _topic("cleanup.policy")),
    Check("kafka.unclean_election", _ELECTION, _SHELL, _topic("unclean.leader.election.enable")),
    Check("kafka.retention", _RETENTION, _SHELL, _topic("retention.ms", "retention.bytes"), _CONSIDER),
    Check("elasticsearch.reach", "Elasticsearch answers", _ADVICE, _reach("elasticsearch")),
    Check("elasticsearch.indices", "Every active index exists", _SHELL, _lost),
    Check("elasticsearch.gc_deletes", _FORGETS, _SHELL, _index("index.gc_deletes")),
    Check("elasticsearch.durability", _TRANSLOG, _SHELL, _index("index.translog.durability", is_current=True)),
    Check("elasticsearch.refresh", _REFRESH, _SHELL, _index("index.refresh_interval", is_current=True)),
    Check("elasticsearch.pipelines", "No ingest pipeline changes documents", _SHELL, _index(*PIPELINES), note=_AGAIN),
    Check("elasticsearch.lifecycle", "No lifecycle policy manages an index", _SHELL, _index("index.lifecycle.name")),
    Check("elasticsearch.guard", "No late delete can create an index named like a write alias", _SHELL, _guard),
    Check("elasticsearch.orphans", "Every index that this installation made is known to Postgres", _SHELL, _orphans),
    Check("elasticsearch.epoch", "Elasticsearch has recorded the epoch", _SHELL, _epoch),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of an examination: at least one finding of each check, in the order of the table."""

    findings: tuple[Finding, ...]

    @property
    def numbers(self) -> dict[Severity, int]:
        """How many findings there are of each severity."""
        found = Counter(finding.severity for finding in self.findings)
        return {severity: found[severity] for severity in Severity}

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.numbers[Severity.WRONG]


def examine(settings: Settings, config_folder: Path, *, checks: Sequence[Check] = CHECKS) -> Report:
    """Make these checks, or all, of the servers that are used."""
    with Deployment(settings, config_folder) as deployment:
        used = [check for check in checks if check.server in deployment.servers]
        return Report(findings=tuple(finding for check in used for finding in _made(check, deployment)))


def _made(check: Check, deployment: Deployment) -> list[Finding]:
    """Return what a check found, with what the table says of it."""
    made = partial(Finding, id=check.id, expected=check.expected)
    try:
        found = list(check.ask(deployment))
    except UnseenError as error:
        return [made(str(error), severity=Severity.UNSEEN)]
    except ERRORS as error:
        return [made((explain(error) or SyncerError(str(error))).message, severity=Severity.UNSEEN)]
    return [
        made(
            finding.found,
            finding.fix,
            how=finding.how or check.how,
            note=check.note if finding.note is None else finding.note,
            severity=finding.severity or check.severity,
        )
        for finding in found
    ] or [made(severity=Severity.WELL)]
