"""The three servers with security on: TLS, passwords, certificates, ACLs and API keys.

Postgres and Kafka also have a port without, for the tests themselves. Elasticsearch has one port, with TLS, and takes
an anonymous client for the tests.
"""

from __future__ import annotations

import datetime as dt
import http.client
import ipaddress
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from elasticsearch import Elasticsearch

from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.cache import Account, Cache
from syncer.sandbox.server import LOOPBACK, start
from syncer.sandbox.servers import ElasticsearchServer, KafkaServer, PostgresServer
from tests.support.world import World

_DAY = dt.timedelta(days=1)


class Authority:
    """Signs certificates, and writes them into a folder; the account owns the servers' keys."""

    def __init__(self, folder: Path, account: Account, name: str) -> None:
        self._folder = folder
        self._account = account
        self._key = _key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key)
        extended = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = folder / "ca.pem"
        self.certificate.write_bytes(extended.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        self.certificate.chmod(0o644)

    def issue(self, name: str, *, for_server: bool = False) -> tuple[Path, Path, Path]:
        """The certificate of that common name, its key, and both in one file."""
        key = _key()
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        if for_server:
            names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(_LOOPBACK)])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM).decode()
        secret = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
        files = self._folder / f"{name}.pem", self._folder / f"{name}.key", self._folder / f"{name}.both.pem"
        for file, content in zip(files, (certificate, secret, secret + certificate), strict=True):
            if for_server:
                self._account.write(file, content)
            else:
                file.write_text(content)
            file.chmod(0o600)
        return files

    def _builder(self, subject: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
        today = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - _DAY)
            .not_valid_after(today + _DAY)
        )


_PEM = serialization.Encoding.PEM
_LOOPBACK = ipaddress.IPv4Address(LOOPBACK)


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class SecuredKafka(KafkaServer):
    """A broker with a port that requires TLS and a password."""

    ports_needed = 3

    @property
    def secured_address(self) -> str:
        """The address of that port."""
        return f"{LOOPBACK}:{self._ports[2]}"

    def _own_settings(self) -> dict[str, str]:
        settings, secured = super()._own_settings(), f"SASL_SSL://{self.secured_address}"
        return settings | {name: f"{settings[name]},{secured}" for name in ("listeners", "advertised.listeners")}


class SecuredElasticsearch(ElasticsearchServer):
    """A node that speaks TLS."""

    certificates: Path

    @property
    def address(self) -> str:
        """The URL."""
        return f"https://{LOOPBACK}:{self.port}"

    def _connection(self) -> http.client.HTTPConnection:
        context = ssl.create_default_context(cafile=str(self.certificates))
        return http.client.HTTPSConnection(LOOPBACK, self.port, timeout=5, context=context)


@dataclass(frozen=True, kw_only=True)
class Secured:
    """The servers while they run, and an authority that is a stranger to them."""

    sandbox: Sandbox
    authority: Authority
    stranger: Authority
    endpoints: Endpoints
    """For the tests."""
    kafka: str
    """For syncer."""


@dataclass
class SecuredWorld(World):
    """A world on them."""

    certificates: Path = Path()

    def elasticsearch(self) -> Elasticsearch:
        """A plain client, which is anonymous."""
        return Elasticsearch(self.endpoints.elasticsearch_url, request_timeout=60, ca_certs=str(self.certificates))


@contextmanager
def secured_servers() -> Iterator[Secured]:
    """Start them, and stop them at the end."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)  # for root's servers, which run as nobody
        account = Account.of_servers()
        trusted_folder, stranger_folder = folder / "certificates", folder / "stranger"
        for certificate_folder in (trusted_folder, stranger_folder):
            account.own(certificate_folder)
        authority, stranger = (
            Authority(trusted_folder, account, "authority"),
            Authority(stranger_folder, account, "stranger"),
        )
        certificate, key, both = authority.issue("server", for_server=True)
        sandbox = Sandbox(folder / "servers")
        servers_of = (sandbox.folder, Cache())
        # The newest version, from a Python package, speaks no TLS.
        postgres = PostgresServer(*servers_of, version="17")
        postgres.settings |= _postgres_settings(trusted_folder, account, certificate, key)
        kafka = SecuredKafka(*servers_of)
        kafka.settings |= _kafka_settings(both)
        elastic = SecuredElasticsearch(*servers_of)
        elastic.certificates = authority.certificate
        elastic.settings |= _ELASTIC
        # Elasticsearch reads no file outside of its config folder.
        account.own(elastic.config_folder)
        for file in (certificate, key):
            account.write(elastic.config_folder / file.name, file.read_text())
        for server in start([postgres, kafka, elastic]):
            stack.callback(server.stop)
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
    account.write(folder / "pg_hba.conf", "".join(f"{door}\n" for door in doors))
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
