"""Outage: why a server does not answer, in one sentence.

Each client library describes the same refused connection in its own words. So the server's addresses are tried here,
and the sentence is the same for all three. If a connection opens, the library's explanation is used.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from syncer.base.error_policy import explain
from syncer.base.errors import UnavailableError
from syncer.base.settings import Settings
from syncer.monitoring.status import Server

_CONNECT_SECONDS = 1.0
_PORTS = {Server.POSTGRES: 5432, Server.KAFKA: 9092, Server.ELASTICSEARCH: 9200}
_SETTINGS = {
    Server.POSTGRES: "SYNCER_POSTGRES_DSN",
    Server.KAFKA: "SYNCER_KAFKA_BOOTSTRAP_SERVERS",
    Server.ELASTICSEARCH: "SYNCER_ELASTICSEARCH_URL",
}

Places = tuple[tuple[str, int], ...]
"""Where a server listens: hosts and ports."""


def places(settings: Settings) -> Mapping[Server, Places]:
    """Where each server listens according to the settings, except local sockets."""
    listed: dict[Server, Iterable[str]] = {
        Server.KAFKA: (f"//{one.strip()}" for one in settings.kafka.bootstrap_servers.split(",") if one),
        Server.ELASTICSEARCH: (one.strip() for one in settings.elasticsearch.url.split(",")),
    }
    found = {server: tuple(_parsed(urls, _PORTS[server])) for server, urls in listed.items()}
    return {Server.POSTGRES: tuple(_of_dsn(settings.postgres.dsn.get_secret_value())), **found}


def describe(server: Server, error: Exception, places: Places) -> tuple[str, str]:
    """Say why a server does not answer, as a sentence without a full stop, and what to do."""
    name = server.title()
    hint = f"Start it, or check the network and {_SETTINGS[server]}. Nothing is lost: syncer continues by itself."
    if reasons := refusals(places):
        return f"{name} is down: {' and '.join(reasons)}", hint
    if isinstance(error, UnavailableError):
        where = f" at {places[0][0]}:{places[0][1]}" if len(places) == 1 else ""
        return f"{name} accepts connections{where}, but does not answer: it hangs, or is too busy", hint
    said = explain(error)
    return (f"{name} is not usable: {said.message}", said.hint or hint) if said else (f"{name}: {error!r}", hint)


def refusals(places: Places) -> list[str]:
    """Why no connection opens to any of these addresses; empty if one does."""
    reasons = list(takewhile(bool, (_refusal(host, port) for host, port in places)))
    return reasons if len(reasons) == len(places) else []


def _refusal(host: str, port: int) -> str:
    """Why no connection opens; empty if one does."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return f"connection refused at {host}:{port}"
    except TimeoutError:
        return f"no answer at {host}:{port}"
    except socket.gaierror:
        return f"no such host: {host}"
    except OSError as error:
        return f"{error.strerror or error} at {host}:{port}"
    return ""


def _parsed(urls: Iterable[str], default: int) -> Iterable[tuple[str, int]]:
    for url in urls:
        with suppress(ValueError):
            parts = urlsplit(url)
            if parts.hostname:
                yield parts.hostname, parts.port or default


def _of_dsn(dsn: str) -> Iterable[tuple[str, int]]:
    try:
        found = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return
    hosts = str(found.get("host") or "").split(",")
    ports = str(found.get("port") or "").split(",")
    for place, host in enumerate(hosts):
        port = ports[place if len(ports) > 1 else 0]
        if host and not host.startswith("/"):
            yield host, int(port) if port else _PORTS[Server.POSTGRES]
