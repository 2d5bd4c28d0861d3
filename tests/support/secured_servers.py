"""The three servers with security on: TLS, passwords, certificates, ACLs and API keys.

Beside their secured doors Postgres and Kafka keep one that asks nothing, for the tests themselves; nobody has
privileges there but who could do everything anyhow. Elasticsearch has one door, with TLS, and takes who does not say
his name for the tests.
"""

from __future__ import annotations

import datetime as dt
import http.client
import ipaddress
import json
import ssl
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from elasticsearch import Elasticsearch

from syncer.sandbox import Endpoints, Reporter, Sandbox
from syncer.sandbox.account import Account, cache_folder, server_account
from syncer.sandbox.cache import Cache
from syncer.sandbox.elasticsearch import ElasticsearchServer
from syncer.sandbox.kafka import KafkaServer
from syncer.sandbox.postgres import PostgresServer
from syncer.sandbox.server import LOOPBACK, EmbeddedServer
from tests.support.world import World

_DAY = dt.timedelta(days=1)


class Authority:
    """Who vouches for certificates.

    Args:
        folder: Where they are written.
        account: Whom the servers' keys belong to.
        name: What it is called.
    """

    def __init__(self, folder: Path, account: Account, name: str) -> None:
        self._folder = folder
        self._account = account
        self._key = _key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)  # noqa: FBT003 - the signature is the library's
        self.certificate = self._write("ca.pem", made.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def issue(self, name: str, *, for_server: bool = False) -> tuple[Path, Path, Path]:
        """The certificate of that common name, its key, and both in one file."""
        key = _key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key)
        if for_server:
            names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(_LOOPBACK)])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM)
        secret = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return (
            self._write(f"{name}.pem", certificate),
            self._write(f"{name}.key", secret, for_server=for_server),
            self._write(f"{name}.both.pem", secret + certificate, for_server=for_server),
        )

    def _builder(self, subject: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
        )

    def _write(self, name: str, content: bytes, *, for_server: bool = False) -> Path:
        file = self._folder / name.replace(" ", "-")
        if for_server:
            self._account.write(file, content.decode())
        else:
            file.write_bytes(content)
        file.chmod(0o644 if file.suffix == ".pem" and b"PRIVATE" not in content else 0o600)
        return file


_PEM = serialization.Encoding.PEM
_LOOPBACK = ipaddress.IPv4Address(LOOPBACK)


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class SecuredKafka(KafkaServer):
    """A broker with a door for which TLS and a password are asked."""

    ports_needed = 3

    @property
    def secured_address(self) -> str:
        """That door."""
        return f"{LOOPBACK}:{self._ports[2]}"

    def _write_settings(self) -> None:
        super()._write_settings()
        # Of two lines for one setting the last one counts.
        plain, secured = f"PLAINTEXT://{self.address}", f"SASL_SSL://{self.secured_address}"
        with self._settings_file.open("a") as file:
            file.write(f"listeners={plain},{secured},CONTROLLER://{LOOPBACK}:{self._ports[1]}\n")
            file.write(f"advertised.listeners={plain},{secured}\n")


class SecuredElasticsearch(ElasticsearchServer):
    """A node that speaks TLS."""

    certificates: Path

    @property
    def address(self) -> str:
        """The URL."""
        return f"https://{LOOPBACK}:{self.port}"

    def _get(self, path: str) -> dict[str, object]:
        context = ssl.create_default_context(cafile=str(self.certificates))
        connection = http.client.HTTPSConnection(LOOPBACK, self.port, timeout=5, context=context)
        try:
            connection.request("GET", path)
            response: dict[str, object] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return response


@dataclass(frozen=True, kw_only=True)
class Secured:
    """The servers while they run.

    Args:
        sandbox: Whose folder they are in.
        authority: Who vouches for them.
        stranger: Who vouches for nobody that they know.
        endpoints: Where the tests go.
        kafka: Where others go.
    """

    sandbox: Sandbox
    authority: Authority
    stranger: Authority
    endpoints: Endpoints
    kafka: str


@dataclass
class SecuredWorld(World):
    """A world on them."""

    certificates: Path = Path()

    @contextmanager
    def elasticsearch(self) -> Iterator[Elasticsearch]:
        """A plain client, which does not say its name."""
        client = Elasticsearch(self.endpoints.elasticsearch_url, request_timeout=60, ca_certs=str(self.certificates))
        try:
            yield client
        finally:
            client.close()


@contextmanager
def secured_servers() -> Iterator[Secured]:
    """Start them, and stop them at the end."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)  # for root's servers, which run as nobody
        account = server_account()
        own, other = folder / "certificates", folder / "stranger"
        for one in (own, other):
            account.own(one)
        authority, stranger = Authority(own, account, "authority"), Authority(other, account, "stranger")
        certificate, key, both = authority.issue("server", for_server=True)
        sandbox = Sandbox(folder / "servers")
        made = (sandbox.folder, Cache(cache_folder(account), account, report=Reporter()), account)
        # The newest version, from a Python package, speaks no TLS.
        postgres = PostgresServer(*made, report=Reporter(), version="17")
        postgres.settings |= _postgres_settings(own, account, certificate, key)
        kafka = SecuredKafka(*made, report=Reporter())
        kafka.settings |= _kafka_settings(both)
        elastic = SecuredElasticsearch(*made, report=Reporter())
        elastic.certificates = authority.certificate
        elastic.settings |= _ELASTIC
        servers: tuple[EmbeddedServer, ...] = (postgres, kafka, elastic)
        # Elasticsearch reads no file outside of its config folder.
        account.own(elastic.config_folder)
        for file in (certificate, key):
            account.write(elastic.config_folder / file.name, file.read_text())
        for server in servers:
            stack.callback(server.stop)
        with ThreadPoolExecutor() as threads:
            list(threads.map(EmbeddedServer.start, servers))
        yield Secured(
            sandbox=sandbox,
            authority=authority,
            stranger=stranger,
            endpoints=Endpoints(
                postgres_dsn=postgres.address,
                kafka_bootstrap_servers=kafka.address,
                elasticsearch_url=elastic.address,
            ),
            kafka=kafka.secured_address,
        )


def _postgres_settings(folder: Path, account: Account, certificate: Path, key: Path) -> dict[str, str]:
    doors = (
        f"host all postgres {LOOPBACK}/32 trust",
        f"hostssl all +certified {LOOPBACK}/32 cert",
        f"hostssl all all {LOOPBACK}/32 scram-sha-256",
    )
    account.write(folder / "pg_hba.conf", "".join(f"{one}\n" for one in doors))
    return {
        "ssl": "on",
        "ssl_cert_file": str(certificate),
        "ssl_key_file": str(key),
        "ssl_ca_file": str(folder / "ca.pem"),
        "hba_file": str(folder / "pg_hba.conf"),
    }


def _kafka_settings(both: Path) -> dict[str, str]:
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


_ELASTIC: dict[str, Any] = {
    "xpack.security.enabled": "true",
    "xpack.security.authc.anonymous.roles": "superuser",
    "xpack.security.http.ssl.enabled": "true",
    "xpack.security.http.ssl.certificate": "server.pem",
    "xpack.security.http.ssl.key": "server.key",
}
