"""On servers that ask who is there, syncer works with what docs/security.md gives to each duty, and tells no secret."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from elasticsearch import AuthorizationException
from psycopg.conninfo import make_conninfo

from syncer.locks import Edit, LockError, Locks
from tests.support.secured_servers import Authority, Secured, SecuredWorld, secured_servers
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, REPOSITORY, made

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
LOCKS_PAGE = (REPOSITORY / "docs" / "locks.md").read_text()
DUTIES = ("migrator", "relay", "worker", "operator", "reader")
HOSTILE = "pa:ss'w\"o%s{}/@\\ *&!$#r"
"""What every password here begins with: whatever a URL, YAML, JSON, a shell, a format or a log might stumble over."""
VALUE = "a value of a row"


@dataclass
class Guarded:
    """The servers, a world on them, and what each duty says to be let in.

    Args:
        servers: The servers.
        world: The world.
        folder: Where the files with secrets are.
        secrets: Everything that nothing may show.
        said: Everything that commands have said.
    """

    servers: Secured
    world: SecuredWorld
    folder: Path
    secrets: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def file(self, name: str, content: str) -> str:
        """A file with a secret."""
        file = self.folder / name
        file.write_text(f"{content}\n")
        self.secrets.append(content)
        return str(file)

    def environment(self, duty: str, *, authority: Authority | None = None) -> dict[str, str]:
        """How that duty is let in everywhere; no secret is in it."""
        trusted = str((authority or self.servers.authority).certificate)
        properties = {**kafka_properties(duty, trusted), "sasl.password": f"{HOSTILE}{duty}-kafka"}
        return {
            "SYNCER_POSTGRES_DSN": "",
            "SYNCER_POSTGRES_DSN_FILE": self.file(f"{duty}-dsn", self.dsn(duty, trusted)),
            "SYNCER_KAFKA_BOOTSTRAP_SERVERS": self.servers.kafka,
            "SYNCER_KAFKA_PROPERTIES_FILE": self.file(f"{duty}-kafka", json.dumps(properties)),
            "SYNCER_ELASTICSEARCH_API_KEY_FILE": str(self.folder / f"{duty}-key"),
            "SYNCER_ELASTICSEARCH_CA_CERTS": trusted,
        }

    def dsn(self, duty: str, trusted: str) -> str:
        """The relay comes with a certificate, the others with a password."""
        there = make_conninfo(self.world.dsn, user=duty, sslmode="verify-full", sslrootcert=trusted)
        if duty != "relay":
            return make_conninfo(there, password=f"{HOSTILE}{duty}-postgres")
        certificate, key, _ = self.servers.authority.issue("relay")
        return make_conninfo(there, sslcert=str(certificate), sslkey=str(key))

    def run(
        self, duty: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command of that duty."""
        ended = self.world.syncer(*command, environment={**self.environment(duty), **(environment or {})})
        self.said.append(f"{duty} {command}\n{ended.stdout}{ended.stderr}")
        return ended

    def done(self, duty: str, *command: str) -> str:
        """What a command says that is to succeed."""
        ended = self.run(duty, *command)
        assert ended.returncode == 0, self.said[-1]
        return ended.stdout


def kafka_properties(duty: str, trusted: str) -> dict[str, str]:
    """As docs/security.md has them."""
    found = re.search(r"  properties:\n((?:    .*\n)+)", PAGE)
    assert found is not None
    lines = [line.strip().partition(": ") for line in found[1].splitlines()]
    properties = {name: value for name, _, value in lines}
    assert {"security.protocol", "sasl.mechanisms", "sasl.username", "ssl.ca.location"} == properties.keys()
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
            it.done("migrator", "migrate")
            it.done("migrator", "apply", "--yes")
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
    for duty in duties:
        if duty != "migrator":
            it.world.sql(f"CREATE ROLE {duty} LOGIN; GRANT syncer_{duty} TO {duty}")
        if duty == "relay":
            it.world.sql("CREATE ROLE certified; GRANT certified TO relay")
        else:
            quoted = f"{HOSTILE}{duty}-postgres".replace("'", "''")
            it.world.sql(f"ALTER ROLE {duty} PASSWORD '{quoted}'")


def let_in_kafka(it: Guarded) -> None:
    """A password for each, and the ACLs of the page."""
    admin = AdminClient({"bootstrap.servers": it.world.endpoints.kafka_bootstrap_servers})
    acls = []
    for line in re.findall(r"^kafka-acls.sh --add (.*)$", PAGE, re.MULTILINE):
        words = line.split()
        said = list(zip(words[::2], words[1::2], strict=True))
        (principal,) = [value for name, value in said if name == "--allow-principal"]
        topics = [value for name, value in said if name == "--topic"]
        kind, name = (
            (ResourceType.TOPIC, it.world.settings.kafka.topic)
            if topics
            else (ResourceType.GROUP, it.world.settings.kafka.topic)
        )
        acls += [
            AclBinding(kind, name, ResourcePatternType.LITERAL, principal, "*", AclOperation[value.upper()], _ALLOW)
            for option, value in said
            if option == "--operation"
        ]
        # An operator is a worker.
        acls += [
            AclBinding(one.restype, one.name, one.resource_pattern_type, "User:operator", "*", one.operation, _ALLOW)
            for one in acls[-1:]
            if principal == "User:worker"
        ]
    for acl in admin.create_acls(acls).values():
        acl.result()
    for duty in DUTIES:
        password = f"{HOSTILE}{duty}-kafka"
        it.secrets.append(password)
        one = UserScramCredentialUpsertion(
            duty, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
        )
        admin.alter_user_scram_credentials([one])[duty].result()


_ALLOW = AclPermissionType.ALLOW


def let_in_elasticsearch(it: Guarded) -> None:
    """An API key for each, with the role of the page."""
    blocks = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    worker, migrator, reader = (json.loads(one.replace("blogpost*", f"{it.world.alias}*")) for one in blocks)
    roles = {"worker": worker, "migrator": migrator, "operator": migrator, "reader": reader, "relay": reader}
    with it.world.elasticsearch() as client:
        client.security.put_user(username="owner", password=f"{HOSTILE}owner", roles=["superuser"])
        owner = client.options(basic_auth=("owner", f"{HOSTILE}owner"))
        for duty, role in roles.items():
            key = owner.security.create_api_key(name=duty, role_descriptors={duty: role})
            it.file(f"{duty}-key", str(key.body["encoded"]))


def test_each_duty_does_its_work_over_tls(guarded: Guarded) -> None:
    """Relay and workers follow changes and a fan-out, an operator rebuilds, a reader reads, all with the page's."""
    it, world = guarded, guarded.world
    relay = world.daemon("--only", "relay", environment={**it.environment("relay"), "SYNCER_LOG_LEVEL": "debug"})
    workers = world.daemon("--only", "workers", environment={**it.environment("worker"), "SYNCER_LOG_LEVEL": "debug"})
    world.sql(f"INSERT INTO users (id, name, email) VALUES (1, '{VALUE}', '{VALUE}')")
    world.sql(
        f"INSERT INTO posts (id, user_id, title, body) SELECT n, 1, '{VALUE}', 'b' FROM generate_series(1, 20) AS n"
    )
    world.wait_until_level()
    world.sql(f"UPDATE users SET name = '{VALUE} too' WHERE id = 1")
    world.wait_until_level()
    connected = world.sql(
        "SELECT usename, bool_and(ssl), bool_or(client_dn IS NOT NULL) "
        "FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
        "WHERE application_name ~ '^syncer (relay|worker)' GROUP BY 1"
    )
    assert sorted(connected) == [("relay", True, True), ("worker", True, False)]
    for command in (("status",), ("verify",), ("explain", "blogpost", "2"), ("jobs", "list"), ("dead-letters", "list")):
        it.done("reader", *command)
    it.done("operator", "index", "rebuild", "blogpost")
    found = json.loads(it.run("worker", "doctor", "--json").stdout)["findings"]
    assert [(one["id"], one["found"]) for one in found if one["severity"] == "wrong"] == []
    assert relay.stop() == 0
    assert workers.stop() == 0
    it.said += [one.log_file.read_text() for one in (relay, workers)]


def test_no_duty_can_do_what_is_another_s(guarded: Guarded) -> None:
    """The relay cannot read the topic, nor a worker write it; a reader can write no document."""
    it, topic = guarded, guarded.world.settings.kafka.topic
    trusted = str(it.servers.authority.certificate)

    def client(duty: str) -> dict[str, str]:
        return {
            "bootstrap.servers": it.servers.kafka,
            "sasl.password": f"{HOSTILE}{duty}-kafka",
            "group.id": it.world.settings.kafka.topic,
            **kafka_properties(duty, trusted),
        }

    errors: list[KafkaError | None] = []
    said = {name: value for name, value in client("worker").items() if name != "group.id"}
    producer = Producer(said | {"message.timeout.ms": "100000"})
    producer.produce(topic, b"{}", on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_SECONDS)
    consumer = Consumer(client("relay"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(DEADLINE_SECONDS)
    consumer.close()
    refused = [errors[0], message and message.error()]
    assert [one and one.code() for one in refused] == [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2
    with it.world.elasticsearch() as everybody:
        reader = everybody.options(api_key=(it.folder / "reader-key").read_text().strip())
        with pytest.raises(AuthorizationException):
            reader.index(index=it.world.index_of(), id="1", document={"title": "x"})
    worker = AdminClient({**said})  # answers only as long as it lives
    rule = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:worker", "*", AclOperation.ALL, _ALLOW
    )
    with pytest.raises(KafkaException) as refusal:
        worker.create_acls([rule])[rule].result(timeout=DEADLINE_SECONDS)
    assert refusal.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


WRONG = {
    "postgres password": ({"SYNCER_POSTGRES_DSN_FILE": "wrong-dsn"}, "password authentication failed"),
    "api key": ({"SYNCER_ELASTICSEARCH_API_KEY_FILE": "wrong-key"}, "login"),
}


def test_locks_need_the_privileges_that_their_page_names(guarded: Guarded) -> None:
    """Those will do; a holder that lacks the privileges for the documents is refused at once."""
    it, index = guarded, f"{guarded.world.alias}-locked"
    (needs,) = re.findall(r"needs (`create_index`.*?) on `syncer-locks`, and (.*?) on", " ".join(LOCKS_PAGE.split()))
    on_locks, on_documents = (re.findall(r"`(\w+)`", privileges) for privileges in needs)
    with it.world.elasticsearch() as client:
        owner = client.options(basic_auth=("owner", f"{HOSTILE}owner"))
        owner.indices.create(index=index, settings={"index.gc_deletes": "1h"})

        def change(documents: str) -> None:
            rights = [
                {"names": [documents], "privileges": on_documents},
                {"names": [f"{index}-locks"], "privileges": on_locks},
            ]
            key = owner.security.create_api_key(name="locker", role_descriptors={"locker": {"indices": rights}})
            locks = Locks(client.options(api_key=key["encoded"]), owner="locker", index=f"{index}-locks")
            with locks.everything() as held:
                held.write([Edit(index=index, id="1", source={"name": "a"})])

        change(index)
        with pytest.raises(LockError, match="unauthorized"):
            change("other")
        owner.indices.delete(index=[index, f"{index}-locks"])


def words(ended: subprocess.CompletedProcess[str]) -> str:
    """Everything that a command printed, in one line."""
    return " ".join(f"{ended.stdout} {ended.stderr}".split())


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_secret_is_said_and_not_shown(guarded: Guarded, what: str) -> None:
    """Who is not let in is told by which server, also with --debug, without the secret that he came with."""
    it = guarded
    trusted = str(it.servers.authority.certificate)
    it.file("wrong-dsn", make_conninfo(it.dsn("worker", trusted), password=f"{HOSTILE}wrong"))
    it.file("wrong-key", "d3Jvbmc6d3Jvbmctd3Jvbmctd3Jvbmctd3Jvbmc=")
    changes, says = WRONG[what]
    environment = {name: str(it.folder / file) for name, file in changes.items()}
    ended = it.run("worker", "status", environment=environment)
    assert ended.returncode == 1
    assert says in words(ended).lower()
    assert "Traceback" in it.run("worker", "--debug", "apply", environment=environment).stderr


STRANGERS = {
    "postgres": "certificate verify failed",
    "elasticsearch": "certificate verify failed",
}


@pytest.mark.parametrize("server", STRANGERS)
def test_a_server_that_a_stranger_vouches_for_is_not_spoken_to(guarded: Guarded, server: str) -> None:
    """A certificate that is not of the authority that was named ends the command before anything is said."""
    it = guarded
    fine, strange = it.environment("worker"), it.environment("worker", authority=it.servers.stranger)
    it.file("strange-dsn", it.dsn("worker", str(it.servers.stranger.certificate)))
    names = {
        "postgres": {"SYNCER_POSTGRES_DSN_FILE": str(it.folder / "strange-dsn")},
        "elasticsearch": {"SYNCER_ELASTICSEARCH_CA_CERTS": strange["SYNCER_ELASTICSEARCH_CA_CERTS"]},
    }
    it.file("worker-dsn", it.dsn("worker", str(it.servers.authority.certificate)))
    ended = it.run("worker", "status", environment={**fine, **names[server]})
    assert ended.returncode == 1
    assert STRANGERS[server] in words(ended).lower()


def test_who_comes_without_tls_is_not_let_in(guarded: Guarded) -> None:
    """Postgres and Elasticsearch answer nobody who does not encrypt what he says."""
    it = guarded
    it.file("plain-dsn", make_conninfo(it.dsn("worker", str(it.servers.authority.certificate)), sslmode="disable"))
    ended = it.run("worker", "status", environment={"SYNCER_POSTGRES_DSN_FILE": str(it.folder / "plain-dsn")})
    assert "no encryption" in words(ended)
    plain = {"SYNCER_ELASTICSEARCH_URL": it.world.endpoints.elasticsearch_url.replace("https", "http")}
    assert it.run("worker", "status", environment=plain).returncode == 1


def test_nothing_that_was_said_shows_a_secret_or_a_row(guarded: Guarded) -> None:
    """Logs at level debug, errors and tracebacks of all that went before: no password, no key, no value of a row."""
    said = "\n".join(guarded.said)
    assert "Traceback" in said
    assert "worker.batch_indexed" in said
    assert [one for one in guarded.secrets if one in said] == []
    assert HOSTILE[:10] not in said
    logs = "\n".join(one.log_file.read_text() for one in guarded.world.daemons)
    assert VALUE not in logs
