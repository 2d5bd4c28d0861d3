"""On servers that ask who is there, syncer works with what docs/security.md gives to each duty, and tells no secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from elasticsearch import AuthorizationException
from psycopg.conninfo import make_conninfo

from tests.support.secured_servers import Secured, SecuredWorld, secured_servers
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, REPOSITORY, made, wait_until

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
DUTIES = ("migrator", "relay", "worker", "operator", "reader")
HOSTILE = "pa:ss'w\"o%s{}/@\\ *&!$#r"
"""What every password here begins with: whatever a URL, YAML, JSON, a shell, a format or a log might stumble over."""
VALUE = "a value of a row"


@dataclass
class Guarded:
    """The servers, a world on them, and how each duty logs in.

    Args:
        secrets: Everything that nothing may show.
        output: Everything that commands have printed.
    """

    servers: Secured
    world: SecuredWorld
    folder: Path
    secrets: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)

    def file(self, name: str, content: str) -> str:
        """A file with a secret."""
        file = self.folder / name
        file.write_text(f"{content}\n")
        self.secrets.append(content)
        return str(file)

    def environment(self, duty: str) -> dict[str, str]:
        """How that duty logs in everywhere; no secret is in it."""
        trusted = str(self.servers.authority.certificate)
        properties = {**kafka_properties(duty, trusted), "sasl.password": f"{HOSTILE}{duty}-kafka"}
        return {
            "SYNCER_POSTGRES_DSN": "",
            "SYNCER_POSTGRES_DSN_FILE": self.file(f"{duty}-dsn", self.dsn(duty, trusted)),
            "SYNCER_KAFKA_BOOTSTRAP_SERVERS": self.servers.kafka,
            "SYNCER_KAFKA_PROPERTIES_FILE": self.file(f"{duty}-kafka", json.dumps(properties)),
            "SYNCER_ELASTICSEARCH_API_KEY_FILE": str(self.folder / f"{duty}-key"),
            "SYNCER_ELASTICSEARCH_CA_CERTS": trusted,
        }

    def dsn(self, duty: str, trusted: str, **changes: str) -> str:
        """The relay logs in with a certificate, the others with a password."""
        address = make_conninfo(self.world.dsn, user=duty, sslmode="verify-full", sslrootcert=trusted)
        if duty != "relay":
            return make_conninfo(address, **{"password": f"{HOSTILE}{duty}-postgres", **changes})
        certificate, key, _ = self.servers.authority.issue("relay")
        return make_conninfo(address, sslcert=str(certificate), sslkey=str(key))

    def run(self, duty: str, *command: str, environment: Mapping[str, str] | None = None, code: int = 0) -> str:
        """What a command of that duty prints."""
        ended = self.world.syncer(*command, environment={**self.environment(duty), **(environment or {})})
        self.output.append(f"{duty} {command}\n{ended.stdout}{ended.stderr}")
        assert ended.returncode == code, self.output[-1]
        return ended.stdout if command[-1] == "--json" else ended.stdout + ended.stderr


def kafka_properties(duty: str, trusted: str) -> dict[str, str]:
    """As docs/security.md has them."""
    block = re.search(r"  properties:\n((?:    .*\n)+)", PAGE)
    assert block is not None
    lines = [line.strip().partition(": ") for line in block[1].splitlines()]
    properties = {name: value for name, _, value in lines}
    return properties | {"sasl.username": duty, "ssl.ca.location": trusted}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Servers and a world with all duties let in as docs/security.md says, and the blog active."""
    folder = tmp_path_factory.mktemp("secured")
    with secured_servers() as servers:
        world = SecuredWorld(
            sandbox=servers.sandbox,
            endpoints=servers.endpoints,
            folder=folder,
            certificates=servers.authority.certificate,
            worker_settings={"SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "5"},
        )
        with made(world):
            it = Guarded(servers=servers, world=world, folder=folder)
            world.sql(BLOG_SCHEMA.read_text())
            world.sql("CREATE ROLE shop; ALTER TABLE users OWNER TO shop")
            world.sql("ALTER TABLE posts OWNER TO shop; ALTER TABLE comments OWNER TO shop")
            let_in_kafka(it)
            let_in_elasticsearch(it)
            grant(it, "migrator")
            it.run("migrator", "migrate")
            it.run("migrator", "apply", "--yes")
            grant(it, *DUTIES[1:])
            yield it


def grant(it: Guarded, *duties: str) -> None:
    """Give each duty a login role of its name, and its way in; all but the migrator run docs/roles.sql first."""
    if duties == ("migrator",):
        it.world.sql("CREATE ROLE migrator LOGIN; GRANT shop TO migrator; GRANT USAGE ON SCHEMA public TO migrator")
        it.world.sql(f"GRANT CREATE ON DATABASE {it.world.name} TO migrator")
    else:
        it.world.sql((REPOSITORY / "docs" / "roles.sql").read_text())
        it.world.sql("GRANT USAGE ON SCHEMA public TO syncer_relay, syncer_documents")
        it.world.sql("GRANT SELECT ON users, posts, comments TO syncer_documents")
        it.world.sql("; ".join(f"CREATE ROLE {duty} LOGIN; GRANT syncer_{duty} TO {duty}" for duty in duties))
        it.world.sql("CREATE ROLE certified; GRANT certified TO relay")
    for duty in duties:
        if duty != "relay":
            quoted = f"{HOSTILE}{duty}-postgres".replace("'", "''")
            it.world.sql(f"ALTER ROLE {duty} PASSWORD '{quoted}'")


def let_in_kafka(it: Guarded) -> None:
    """A password for each, and the ACLs of the page."""
    admin, topic = AdminClient({"bootstrap.servers": it.world.endpoints.kafka_bootstrap_servers}), ResourceType.TOPIC
    allow, literal = AclPermissionType.ALLOW, ResourcePatternType.LITERAL
    name, acls = it.world.settings.kafka.topic, []
    for line in re.findall(r"^kafka-acls.sh --add (.*)$", PAGE, re.MULTILINE):
        kind = topic if "--topic" in line else ResourceType.GROUP
        (principal,) = re.findall(r"--allow-principal (\S+)", line)
        # An operator is a worker.
        for user in {principal, "User:operator"} if principal == "User:worker" else {principal}:
            operations = [AclOperation[word.upper()] for word in re.findall(r"--operation (\S+)", line)]
            acls += [AclBinding(kind, name, literal, user, "*", operation, allow) for operation in operations]
    for created in admin.create_acls(acls).values():
        created.result()
    mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for duty in DUTIES:
        it.secrets.append(f"{HOSTILE}{duty}-kafka")
        login = UserScramCredentialUpsertion(duty, mechanism, it.secrets[-1].encode())
        admin.alter_user_scram_credentials([login])[duty].result()


def let_in_elasticsearch(it: Guarded) -> None:
    """An API key for each, with the role of the page."""
    blocks = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    worker, migrator, reader = (json.loads(block.replace("blogpost*", f"{it.world.alias}*")) for block in blocks)
    roles = {"worker": worker, "migrator": migrator, "operator": migrator, "reader": reader, "relay": reader}
    with it.world.elasticsearch() as client:
        client.security.put_user(username="owner", password=f"{HOSTILE}owner", roles=["superuser"])
        owner = client.options(basic_auth=("owner", f"{HOSTILE}owner"))
        for duty, role in roles.items():
            key = owner.security.create_api_key(name=duty, role_descriptors={duty: role})
            it.file(f"{duty}-key", str(key.body["encoded"]))


def test_each_duty_does_its_work_over_tls(guarded: Guarded) -> None:
    """Relay and workers follow a failover, changes, a fan-out and a TRUNCATE; operators and readers do their work."""
    it, world = guarded, guarded.world
    world.sql("DELETE FROM syncer.cluster_identity")  # as a failover does: the worker enters another epoch
    relay = world.daemon("--only", "relay", environment={**it.environment("relay"), "SYNCER_LOG_LEVEL": "debug"})
    workers = world.daemon("--only", "workers", environment={**it.environment("worker"), "SYNCER_LOG_LEVEL": "debug"})
    world.sql(f"INSERT INTO users (id, name, email) VALUES (1, '{VALUE}', '{VALUE}')")
    world.sql(
        f"INSERT INTO posts (id, user_id, title, body) SELECT n, 1, '{VALUE}', 'b' FROM generate_series(1, 20) AS n"
    )
    world.wait_until_level()
    world.sql(f"UPDATE users SET name = '{VALUE} too' WHERE id = 1")
    world.wait_until_level()
    workers.wait_for("failover.detected")
    workers.wait_for("job.finished")
    connected = world.sql(
        "SELECT usename, bool_and(ssl), bool_or(client_dn IS NOT NULL) "
        "FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
        "WHERE application_name ~ '^syncer (relay|worker)' GROUP BY 1"
    )
    assert sorted(connected) == [("relay", True, True), ("worker", True, False)]
    world.sql("TRUNCATE comments")
    relay.wait_for("relay.outbox_trimmed")
    world.sql("INSERT INTO posts (id, user_id, title, body, created) VALUES (99, 1, 'no date', 'b', 'infinity')")
    workers.wait_for("document.dead_lettered")
    assert "document_parsing_exception" in it.run("reader", "dead-letters", "list")
    world.sql("DELETE FROM posts WHERE id = 99")
    world.wait_until_level()
    for duty in ("relay", "worker", "reader"):
        findings = json.loads(it.run(duty, "doctor", "--json"))["findings"]
        assert [(row["id"], row["found"]) for row in findings if row["severity"] == "wrong"] == []
    [[token]] = world.sql("UPDATE posts SET title = 'waited for' WHERE id = 1 RETURNING syncer.token()")
    it.run("reader", "wait", token)
    for command in ("status", "verify", "explain blogpost 2", "jobs list"):
        it.run("reader", *command.split())
    for command in ("backfill blogpost", "index rebuild blogpost", "verify --repair", "dead-letters retry blogpost"):
        it.run("operator", *command.split())
    events = {"relay.led", "apply.finished", "job.finished", "verify.finished"}
    wait_until(
        lambda: events <= {event["event"] for event in json.loads(it.run("reader", "events", "--json"))},
        what="the timeline has what each duty did",
    )
    assert relay.stop() == 0
    assert workers.stop() == 0
    it.output += [daemon.log_file.read_text() for daemon in (relay, workers)]


def test_an_audit_needs_to_read_and_nothing_else(guarded: Guarded) -> None:
    """SELECT on the tables, and two privileges on the index: no schema syncer, and nothing of the cluster."""
    it, select, quoted = guarded, guarded.folder / "posts.sql", HOSTILE.replace("'", "''")
    select.write_text("SELECT p.id AS _id, p.title FROM posts AS p")
    it.world.sql(f"CREATE ROLE auditor LOGIN PASSWORD '{quoted}auditor-postgres'")
    it.world.sql("GRANT SELECT ON posts TO auditor")
    indices = [{"names": [f"{it.world.alias}*"], "privileges": ["read", "view_index_metadata"]}]
    with it.world.elasticsearch() as client:
        owner = client.options(basic_auth=("owner", f"{HOSTILE}owner"))
        key = owner.security.create_api_key(name="auditor", role_descriptors={"auditor": {"indices": indices}})
    it.file("auditor-key", str(key.body["encoded"]))
    audited = it.run("auditor", "verify", "--select", str(select), "--index", it.world.alias)
    assert "equal their SELECT" in audited


def test_no_duty_can_do_what_is_another_s(guarded: Guarded) -> None:
    """The relay cannot read the topic, nor a worker write it; a reader can write no document."""
    it, topic = guarded, guarded.world.settings.kafka.topic

    def client(duty: str) -> dict[str, str]:
        properties = kafka_properties(duty, str(it.servers.authority.certificate))
        return {"bootstrap.servers": it.servers.kafka, "sasl.password": f"{HOSTILE}{duty}-kafka", **properties}

    errors: list[KafkaError | None] = []
    producer = Producer({**client("worker"), "message.timeout.ms": "100000"})
    producer.produce(topic, b"{}", on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_SECONDS)
    consumer = Consumer({**client("relay"), "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(DEADLINE_SECONDS)
    consumer.close()
    refused = [errors[0], message and message.error()]
    assert [error and error.code() for error in refused] == [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2
    with it.world.elasticsearch() as client_of_all:
        reader = client_of_all.options(api_key=(it.folder / "reader-key").read_text().strip())
        with pytest.raises(AuthorizationException):
            reader.index(index=it.world.index_of(), id="1", document={"title": "x"})


def test_a_wrong_login_is_refused_and_not_shown(guarded: Guarded) -> None:
    """A wrong password or key, a server of another authority, and a line without TLS; also with --debug."""
    it = guarded
    trusted, strange = (str(by.certificate) for by in (it.servers.authority, it.servers.stranger))
    it.file("wrong-key", "d3Jvbmc6d3Jvbmctd3Jvbmctd3Jvbmctd3Jvbmc=")
    dsn, key, ca = "SYNCER_POSTGRES_DSN_FILE", "SYNCER_ELASTICSEARCH_API_KEY_FILE", "SYNCER_ELASTICSEARCH_CA_CERTS"
    plain = it.world.endpoints.elasticsearch_url.replace("https", "http")
    for changes, reason in (
        ({dsn: it.file("wrong", it.dsn("worker", trusted, password=f"{HOSTILE}wrong"))}, "authentication failed"),
        ({key: str(it.folder / "wrong-key")}, "login"),
        ({dsn: it.file("strange", it.dsn("worker", strange))}, "certificate verify failed"),
        ({ca: strange}, "certificate verify failed"),
        ({dsn: it.file("plain", it.dsn("worker", trusted, sslmode="disable"))}, "no encryption"),
        ({"SYNCER_ELASTICSEARCH_URL": plain}, ""),
    ):
        printed = it.run("worker", "status", environment=changes, code=1)
        assert reason in " ".join(printed.lower().split()), changes
        it.run("worker", "--debug", "apply", environment=changes, code=1)


def test_nothing_that_was_printed_shows_a_secret_or_a_row(guarded: Guarded) -> None:
    """Logs at level debug, errors and tracebacks of all that went before: no password, no key, no value of a row."""
    output = "\n".join(guarded.output)
    assert "Traceback" in output
    assert "worker.batch_indexed" in output
    assert [secret for secret in guarded.secrets if secret in output] == []
    assert HOSTILE[:10] not in output
    logs = "\n".join(daemon.log_file.read_text() for daemon in guarded.world.daemons)
    assert VALUE not in logs
