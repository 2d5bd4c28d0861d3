"""What a request may read and do over HTTP, and what becomes of requests that make no sense."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from hashlib import sha256
from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr
from werkzeug.test import Client
from werkzeug.wrappers import Response

from syncer.base.errors import ConfigError
from syncer.base.lifecycle import Stop
from syncer.base.settings import ElasticsearchSettings, KafkaSettings, PostgresSettings, Settings, WebSettings
from syncer.monitoring import daemons
from syncer.monitoring.daemons import Reporter
from syncer.monitoring.web import server as web_server
from syncer.monitoring.web.api import Api
from syncer.monitoring.web.server import Access, App, Guard
from tests.support.network import ask
from tests.support.world import running

TOKEN = "a token that is long enough"  # noqa: S105 - of this test
LOCAL, OPEN = "127.0.0.1", "0.0.0.0"  # noqa: S104 - nothing listens there
SETTINGS = Settings(
    postgres=PostgresSettings(dsn=SecretStr(f"host={LOCAL} port=1")),
    kafka=KafkaSettings(bootstrap_servers=f"{LOCAL}:1"),
    elasticsearch=ElasticsearchSettings(url=f"http://{LOCAL}:1"),
)
PATHS = ("/metrics", "/facts", "/values")


def echoed(access: Access, name: str = "", number: Annotated[int, Field(le=9)] = 0) -> dict[str, Any]:
    """An answer with what was asked."""
    return {"access": access, "name": name, "number": number}


def fails(_: Access) -> None:
    """An answer that meets an unforeseen error."""
    raise RuntimeError("the value of a row")


def app(listens: str = LOCAL, token: str | None = TOKEN) -> App:
    """An application with one path of each kind."""
    routes: dict[str, tuple[Callable[..., Any], Access]] = {
        "/metrics": (echoed, Access.HEALTH),
        "/fails": (fails, Access.HEALTH),
        "/facts": (echoed, Access.FIGURES),
        "/values": (echoed, Access.VALUES),
    }
    return App(Guard(host=listens, token=token), routes)


APP = app()
CLIENT = Client(APP)
SENT = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("listens", "token", "sent", "statuses"),
    [
        (LOCAL, None, None, (200, 200, 403)),
        (LOCAL, None, TOKEN, (200, 200, 403)),
        (LOCAL, TOKEN, None, (200, 200, 401)),
        (LOCAL, TOKEN, TOKEN, (200, 200, 200)),
        (LOCAL, TOKEN, "another token, as long as it", (401, 401, 401)),
        (OPEN, None, None, (200, 403, 403)),
        (OPEN, TOKEN, None, (200, 401, 401)),
        (OPEN, TOKEN, TOKEN, (200, 200, 200)),
    ],
)
def test_which_requests_may_have_what(
    listens: str, token: str | None, sent: str | None, statuses: tuple[int, ...]
) -> None:
    """Figures are for this machine, values for the token; beyond this machine all but metrics is."""
    client = Client(app(listens, token))
    headers = {"Authorization": f"Bearer {sent}"} if sent else {}
    assert tuple(client.get(path, headers=headers).status_code for path in PATHS) == statuses


SITE, PAGE = "Sec-Fetch-Site", {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        *(
            ("/facts", {"Host": host, **SENT}, 403)
            for host in ("evil.example:8765", "127.0.0.1.evil.example", "[::2]:80", "", "@", "a b")
        ),
        *(
            ("/facts", {"Host": host}, 200)
            for host in ("localhost", "LOCALHOST:1", "127.0.0.1:9", "127.1.2.3", "[::1]:8765", "localhost.")
        ),
        ("/facts", {SITE: "same-origin"}, 200),
        ("/facts", {SITE: "none"}, 200),
        ("/facts", {SITE: "cross-site"}, 403),
        ("/metrics", {SITE: "same-site"}, 403),
        # A link may lead to the page, which asks for its numbers itself, and into no frame.
        ("/", {SITE: "cross-site", **PAGE}, 200),
        ("/", {SITE: "cross-site", **PAGE, "Sec-Fetch-Dest": "iframe"}, 403),
        ("/", {SITE: "cross-site", **PAGE, "Host": "evil.example"}, 403),
        ("/facts", {SITE: "cross-site", **PAGE}, 403),
    ],
)
def test_the_page_of_another_site_gets_nothing(path: str, headers: dict[str, str], status: int) -> None:
    """Nor does a foreign name that leads to this machine's loopback, with the token or without."""
    assert CLIENT.get(path, headers=headers).status_code == status
    asked_first = {"Origin": "http://evil.example", "Access-Control-Request-Method": "GET"}
    allowed = CLIENT.options("/facts", headers=asked_first).headers.keys()
    assert not [name for name in allowed if name.startswith("Access-Control")]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/absent", 404),
        ("GET", "/static/../app.py", 404),
        ("GET", "/static/%2e%2e%2fapp.py", 404),
        ("GET", "http://localhost//evil.example/", 404),
        ("POST", "/facts", 405),
        ("GET", "/facts?number=10", 400),
        ("GET", "/facts?number=x", 400),
        ("GET", "/facts?access=2", 400),
        ("GET", "/facts?other=1", 400),
        ("GET", "/fails", 500),
    ],
)
def test_a_bad_request_is_explained_as_json(method: str, path: str, status: int) -> None:
    """A sentence, and no traceback."""
    answer = CLIENT.open(path, method=method, headers=SENT)
    assert (answer.status_code, answer.content_type) == (status, "application/json")
    assert answer.get_json().keys() == {"message", "hint"}
    assert "the value of a row" not in answer.text
    assert CLIENT.get("/facts?name=n", headers=SENT).get_json() == {"access": Access.VALUES, "name": "n", "number": 0}


def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    """The page, a script, the API and an error: none may load from elsewhere, be framed, sniffed or kept."""
    for path in ("/", "/static/main.js", "/facts", "/absent"):
        headers = CLIENT.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert ("default-src 'none'" in policy, "frame-ancestors 'none'" in policy, "unsafe" in policy) == (
            True,
            True,
            False,
        )
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("name", "checksum"),
    [
        ("uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
        ("uPlot.LICENSE.txt", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
    ],
)
def test_the_library_of_the_charts_is_as_released(name: str, checksum: str) -> None:
    """The files are those of the npm package uplot 1.6.32, in its folder dist, and its licence, unchanged."""
    assert sha256(CLIENT.get(f"/static/{name}").data).hexdigest() == checksum


def api(settings: Settings, guard: Guard, *components: str, stop: Stop | None = None) -> Api:
    """The API of a daemon that has started nothing yet."""

    def connect() -> Any:
        raise AssertionError

    stop = stop or Stop()
    reporter = Reporter(connect=connect, stop=stop, count_written=float)
    reporter.components = components
    return Api(settings, guard, stop=stop, reporter=reporter)


def reasons(answer: Response) -> dict[str, str]:
    """Why it is not alive, or not ready, by what fails."""
    checks = json.loads(answer.get_data())["checks"]
    return {check["name"]: check["reason"] for check in checks if not check["is_well"]}


@pytest.mark.parametrize(
    ("access", "reason"), [(Access.HEALTH, "Shown only with the token"), (Access.FIGURES, "refuses connections")]
)
def test_an_error_of_a_server_is_not_for_everybody(access: Access, reason: str) -> None:
    """It may name hosts and roles: from elsewhere one learns only that a daemon is not ready."""
    assert reason in reasons(api(SETTINGS, Guard(host=LOCAL, token=TOKEN)).ready(access))["postgres"]


def test_a_component_that_hangs_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for a query that may take any time is; ready is what has started and is not to stop."""
    stop = Stop()
    daemon = api(SETTINGS, Guard(host=LOCAL, token=None), "worker-1", stop=stop)
    assert reasons(daemon.alive(Access.HEALTH)) == {}
    assert reasons(daemon.ready(Access.FIGURES))["components"] == "not started: worker-1"
    monkeypatch.setattr(daemons, "HANG_SECONDS", 0)
    assert "no heartbeat" in reasons(daemon.alive(Access.HEALTH))["worker-1"]
    alive = []

    def waits() -> None:
        with stop.patient():
            alive.append(reasons(daemon.alive(Access.HEALTH)))

    thread = threading.Thread(target=waits, name="worker-1")
    thread.start()
    thread.join()
    assert alive == [{}]
    assert reasons(daemon.ready(Access.FIGURES)).keys() == {"postgres", "elasticsearch"}
    stop.request()
    assert "daemon" in reasons(daemon.ready(Access.FIGURES))


# The port


def test_a_postgres_that_hangs_holds_up_no_health() -> None:
    """However many ask what only Postgres knows: the rest is answered, and some of them are to come again."""
    with closing(socket.create_server((LOCAL, 0))) as silent, ThreadPoolExecutor(20) as pool:
        dsn = SecretStr(f"host={LOCAL} port={silent.getsockname()[1]} connect_timeout=8")
        postgres = PostgresSettings(dsn=dsn)
        guard = Guard(host=LOCAL, token=None)
        answers = api(SETTINGS.model_copy(update={"postgres": postgres}), guard).routes()
        listening = web_server.listen(WebSettings(port=0))
        assert listening is not None
        web = web_server.WebServer(listening, App(guard, answers))
        with running(web):
            asking = [pool.submit(ask, web.address, "/api/jobs") for _ in range(10)]
            assert ask(web.address, "/healthz")[0] == 200
            assert ask(web.address, "/readyz")[0] == 503
            assert not all(answer.done() for answer in asking)  # it has not waited for them
            assert {answer.result()[0] for answer in asking} == {503}


def serving() -> web_server.WebServer:
    """A server with paths of each kind, on a port of its own."""
    listening = web_server.listen(WebSettings(port=0))
    assert listening is not None
    return web_server.WebServer(listening, APP)


@pytest.mark.parametrize(
    ("head", "trickle"),
    [
        (b"", b"G"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n", b"A: a\r\n"),
        (b"", b"\r\n"),
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n", b"x"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"G"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["method", "headers", "empty lines", "body", "after an answer", "chunks"],
)
def test_a_client_that_sends_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch, head: bytes, trickle: bytes) -> None:
    """Rule: the timeout of a connection begins when it opens or is answered; parts of a request do not put it off."""
    monkeypatch.setitem(web_server._LIMITS, "channel_timeout", 1)
    monkeypatch.setitem(web_server._LIMITS, "cleanup_interval", 0)
    web = serving()
    with running(web), closing(socket.create_connection(web._listening.getsockname())) as slow:
        slow.settimeout(0.05)
        slow.sendall(head)
        for _ in range(200):
            with suppress(TimeoutError):
                if not slow.recv(65536):
                    break
            try:
                slow.sendall(trickle)
            except ConnectionError:
                break
        else:
            pytest.fail("the connection is still open")
        assert ask(web.address, "/metrics")[0] == 200


def test_one_address_leaves_connections_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: an address has a share of the connections. More than the server takes are opened; another is answered."""
    monkeypatch.setitem(web_server._LIMITS, "channel_timeout", 3600)
    web = serving()
    address = web._listening.getsockname()
    with running(web), ExitStack() as stack:
        for _ in range(2 * web_server._LIMITS["connection_limit"]):
            stack.enter_context(closing(socket.create_connection(address)))
        for source in ("127.0.0.2", "127.0.0.3", "127.1.1.1"):
            connection = http.client.HTTPConnection(address[0], address[1], timeout=30, source_address=(source, 0))
            with closing(connection):
                connection.request("GET", "/metrics")
                assert connection.getresponse().status == 200


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is configured is an error, which names the setting; from the default one on, the next is used.

    If all of them are taken, there is no page, and the daemon goes on.
    """
    assert web_server.listen(WebSettings(port=None)) is None
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        web_server.listen(WebSettings(host="192.0.2.1", port=0))
    with closing(socket.create_server((LOCAL, 0))) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}") as refused:
            web_server.listen(WebSettings(port=port))
        assert "SYNCER_WEB_PORT" in refused.value.hint
        default = WebSettings.model_construct(host=LOCAL, port=port, _fields_set=set())
        listening = web_server.listen(default)
        assert listening is not None
        with closing(listening):
            assert port < listening.getsockname()[1] < port + web_server.PORTS_TRIED
        monkeypatch.setattr(web_server, "PORTS_TRIED", 1)
        assert web_server.listen(default) is None
