"""A daemon starts while servers are away, or is told to end before it has begun: nothing is left half done."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit

import psycopg.conninfo
import pytest

from tests.support.breakpoints import Plan, Point
from tests.support.world import World
from tests.support.writers import fill

BEFORE_COMPONENTS = Point(at="syncer.recovery.lost_records:require_original", send="SIGTERM")
IN_COMPONENTS = (
    Point(at="syncer.daemon:run", send="SIGTERM"),
    Point(at="syncer.capture.reader:OutboxReader._begin", send="SIGTERM"),
    Point(at="syncer.capture.progress:places", send="SIGTERM"),
    Point(at="syncer.kafka.consumer:ChangeConsumer._seek", send="SIGTERM"),
)


def test_a_daemon_is_told_to_end_while_it_starts(world: World) -> None:
    """It leaves with exit code 0, and the next one does it all."""
    fill(world)

    def ended_at(point: Point) -> int:
        done = world.syncer("run", program=Plan(points=(point,)).program)
        assert "Traceback" not in done.stderr
        return done.returncode

    assert ended_at(BEFORE_COMPONENTS) == 0
    assert [ended_at(point) for point in IN_COMPONENTS] == [0] * len(IN_COMPONENTS)
    daemon = world.daemon()
    world.wait_until_level()
    assert daemon.stop() == 0


@contextmanager
def forwarding(port: int, to: tuple[str, int]) -> Iterator[None]:
    """Let a port, where nothing listened before, lead to a server."""
    listening = socket.create_server(("127.0.0.1", port))
    opened = [listening]

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection(to)
                opened.extend((client, server))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        for each in opened:
            each.close()


def free_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def asked(port: int, path: str) -> tuple[int, str]:
    """What the daemon answers over HTTP."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("server", ["Postgres", "Elasticsearch", "Kafka"])
def test_a_daemon_starts_while_a_server_is_away(world: World, server: str) -> None:
    """It lives, is not ready, says once what it waits for, and goes on when the server answers."""
    fill(world)
    port, page = free_port(), free_port()
    dsn = psycopg.conninfo.conninfo_to_dict(world.dsn)
    host, _, kafka_port = world.endpoints.kafka_bootstrap_servers.rpartition(":")
    real = {
        "Postgres": (str(dsn["host"]), int(dsn["port"] or 5432)),
        "Elasticsearch": ("127.0.0.1", urlsplit(world.endpoints.elasticsearch_url).port or 9200),
        "Kafka": (host, int(kafka_port)),
    }
    away = {
        "Postgres": {"SYNCER_POSTGRES_DSN": psycopg.conninfo.make_conninfo(world.dsn, host="127.0.0.1", port=port)},
        "Elasticsearch": {"SYNCER_ELASTICSEARCH_URL": f"http://127.0.0.1:{port}"},
        "Kafka": {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}"},
    }
    environment = {**away[server], "SYNCER_WEB_PORT": str(page)}
    daemon = world.daemon(environment=environment, until="component.retried")
    assert asked(page, "/healthz")[0] == 200
    status, text = asked(page, "/readyz")
    assert (status, f"{server} cannot be reached" in text) == (503, True)
    with forwarding(port, real[server]):
        daemon.wait_for("daemon.started")
        world.wait_until_level()
        assert asked(page, "/healthz")[0] == 200
        recovered = [one for one in daemon.events() if one["event"] == "component.recovered"]
        assert [one["component"] for one in recovered if one["component"] != "report"] == ["daemon"]
        assert daemon.stop() == 0


def test_a_daemon_that_waits_for_a_server_leaves_when_it_is_told_to(world: World) -> None:
    """With exit code 0, as after any other work."""
    address = {"SYNCER_ELASTICSEARCH_URL": f"http://127.0.0.1:{free_port()}"}
    assert world.daemon(environment=address, until="component.retried").stop() == 0
