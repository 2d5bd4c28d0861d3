"""Who may have what over HTTP, and what becomes of requests that make no sense."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import pytest
from hypothesis import given, settings as budget, strategies as st
from pydantic import SecretStr, ValidationError
from structlog.testing import capture_logs
from werkzeug.test import Client, TestResponse

from syncer.base.errors import ConfigError
from syncer.base.lifecycle import Stop
from syncer.base.settings import ElasticsearchSettings, KafkaSettings, PostgresSettings, Settings, WebSettings
from syncer.monitoring.daemons import Reporter
from syncer.monitoring.web import server as web_server
from syncer.monitoring.web.access import Access, Need
from syncer.monitoring.web.api import Api
from syncer.monitoring.web.app import App, Asked, WebRoute

TOKEN = "a token that is long enough"  # noqa: S105 - nobody else's
LOCAL, OPEN = "127.0.0.1", "0.0.0.0"  # noqa: S104 - nothing listens there
SETTINGS = Settings(
    postgres=PostgresSettings(dsn=SecretStr(f"host={LOCAL} port=1")),
    kafka=KafkaSettings(bootstrap_servers=f"{LOCAL}:1"),
    elasticsearch=ElasticsearchSettings(url=f"http://{LOCAL}:1"),
)
PATHS = {Need.NOTHING: "/metrics", Need.FACTS: "/facts", Need.ROWS: "/rows", Need.ACTIONS: "/act/7"}


def said(asked: Asked, **path: Any) -> dict[str, Any]:
    """What a route answers here: what it was asked."""
    return {"words": dict(asked.words), "has_token": asked.has_token, **path}


def fails(_: Asked) -> None:
    """An answer that meets what nobody foresaw."""
    raise RuntimeError("the value of a row")


ROUTES = [
    WebRoute(path="/metrics", need=Need.NOTHING, answer=said),
    WebRoute(path="/facts", need=Need.FACTS, answer=said),
    WebRoute(path="/rows", need=Need.ROWS, answer=said),
    WebRoute(path="/fails", need=Need.NOTHING, answer=fails),
    WebRoute(path="/act/<int(max=100):job_id>", method="POST", need=Need.ACTIONS, answer=said),
]


def ask(
    need: Need,
    *,
    listens: str = LOCAL,
    token: str | None = None,
    sent: str | None = None,
    host: str = "localhost:8765",
    site: str | None = None,
) -> int:
    """The status of an answer."""
    client = Client(App(Access(host=listens, token=token), ROUTES))
    headers = {"Host": host}
    headers |= {"Authorization": f"Bearer {sent}"} if sent else {}
    headers |= {"Sec-Fetch-Site": site} if site else {}
    method = "POST" if need is Need.ACTIONS else "GET"
    return client.open(PATHS[need], method=method, headers=headers).status_code


@pytest.mark.parametrize(
    ("listens", "token", "sent", "statuses"),
    [
        (LOCAL, None, None, (200, 200, 200, 403)),
        (LOCAL, None, TOKEN, (200, 200, 200, 403)),
        (LOCAL, TOKEN, None, (200, 200, 401, 401)),
        (LOCAL, TOKEN, TOKEN, (200, 200, 200, 200)),
        (LOCAL, TOKEN, "another token, as long as it", (401, 401, 401, 401)),
        (OPEN, None, None, (200, 403, 403, 403)),
        (OPEN, TOKEN, None, (200, 401, 401, 401)),
        (OPEN, TOKEN, TOKEN, (200, 200, 200, 200)),
    ],
)
def test_who_may_have_what(listens: str, token: str | None, sent: str | None, statuses: tuple[int, ...]) -> None:
    """Numbers are for this machine, rows and actions for the token; beyond this machine all but metrics is."""
    assert tuple(ask(one, listens=listens, token=token, sent=sent) for one in PATHS) == statuses


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "[::2]:80", "", "@", "a b"]
)
def test_a_name_that_is_not_ours_leads_nowhere(host: str) -> None:
    """Whoever lets his own name lead to this machine's loopback gets nothing, with the token or without."""
    assert ask(Need.NOTHING, host=host) == 403
    assert ask(Need.FACTS, host=host, token=TOKEN, sent=TOKEN) == 403


def test_many_names_that_are_not_ours_initial_load_no_log() -> None:
    """However many are made up, one line says so, until it is time for the next."""
    fresh = Client(App(Access(host=LOCAL, token=TOKEN), ROUTES))
    with capture_logs() as logs:
        for number in range(100):
            assert fresh.get("/metrics", headers={"Host": f"{number}.example"}).status_code == 403
        assert fresh.get("/facts", headers={"Authorization": "Bearer another"}).status_code == 401
    assert [one["reason"] for one in logs] == ["This is not '0.example'", "Wrong token"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "127.1.2.3", "[::1]:8765", "localhost."])
def test_this_machine_has_several_names(host: str) -> None:
    """Any port is right: it may be the end of a tunnel."""
    assert ask(Need.FACTS, host=host) == 200


def test_the_page_of_another_site_gets_nothing() -> None:
    """A browser says which site a request is for; ours alone is answered."""
    assert ask(Need.FACTS, site="same-origin") == 200
    assert ask(Need.FACTS, site="none") == 200
    assert ask(Need.FACTS, site="cross-site") == 403
    assert ask(Need.NOTHING, site="same-site") == 403
    # A link may lead to the page, which asks for its numbers itself, and into no frame.
    asked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client().get("/", headers=asked).status_code == 200
    assert client().get("/", headers=asked | {"Sec-Fetch-Dest": "iframe"}).status_code == 403
    assert client().get("/facts", headers=asked).status_code == 403
    assert client().get("/", headers=asked | {"Host": "evil.example"}).status_code == 403
    asked_first = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    allowed = client().options("/act/7", headers=asked_first).headers.keys()
    assert not [name for name in allowed if name.startswith("Access-Control")]


APP = App(Access(host=LOCAL, token=TOKEN), ROUTES)


def client() -> Client:
    """A client of an app that anybody on this machine may read."""
    return Client(APP)


def problem(response: TestResponse) -> dict[str, str]:
    """What an error says."""
    assert response.content_type == "application/json"
    body: dict[str, str] = response.get_json()
    assert body.keys() == {"message", "hint"}
    return body


def test_what_is_not_there_is_said_as_json() -> None:
    """A wrong path, a wrong method, a wrong body and an error inside: each a sentence, and no traceback."""
    assert problem(client().get("/nothing"))["message"] == "Not found: /nothing"
    assert client().get("/static/../app.py").status_code == 404
    assert client().get("/static/%2e%2e%2fapp.py").status_code == 404
    assert client().get("http://localhost//evil.example/").status_code == 404
    refused = client().get("/act/7")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")
    assert "POST" in problem(refused)["hint"]
    sent = {"Authorization": f"Bearer {TOKEN}"}
    assert client().post("/act/7", data="{", headers=sent).status_code == 400
    assert client().post("/act/7", data="[1]", headers=sent).status_code == 400
    assert client().post("/act/101", headers=sent).status_code == 404
    assert client().post("/act/7", json={"a": 1}, headers=sent).get_json()["words"] == {"a": 1}
    failed = client().get("/fails")
    assert failed.status_code == 500
    assert "the value of a row" not in failed.text


def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    """The page, a script, the API and an error: none may load from elsewhere, be framed, sniffed or kept."""
    for path in ("/", "/static/main.js", "/facts", "/nothing"):
        headers = client().get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] in ("no-store", "no-cache")
    page = client().get("/")
    assert client().get("/", headers={"If-None-Match": page.headers["ETag"]}).status_code == 304


def test_the_page_names_no_other_host() -> None:
    """Nothing in its files leads elsewhere, and no script or style stands in the page itself."""
    folder = Path(web_server.__file__).parent / "static"
    for file in folder.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in "".join(line for line in text.splitlines() if "http" in line), file
    page = (folder / "index.html").read_text()
    assert "<script>" not in page
    assert "<style" not in page
    assert "style=" not in page
    assert " onclick" not in page


@given(
    path=st.text(st.characters(codec="utf-8"), max_size=60),
    method=st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"]),
    query=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    body=st.binary(max_size=200),
    authorization=st.sampled_from(["", f"Bearer {TOKEN}", "Bearer", "Basic abc", "Bearer " + "x" * 5000]),
)
@budget(max_examples=100, deadline=None)
def test_nothing_that_is_sent_breaks_it(
    path: str, method: str, query: dict[str, str], body: bytes, authorization: str
) -> None:
    """Whatever a request says, the answer is one of those that are documented."""
    headers = {"Authorization": authorization} if authorization else {}
    answer = client().open("/" + quote(path), method=method, query_string=query, data=body, headers=headers)
    assert answer.status_code in (200, 304, 400, 401, 403, 404, 405)


def api(settings: Settings, access: Access) -> Api:
    """The API of a daemon that has started nothing yet."""
    return Api(settings, access, stop=Stop(), reporter=Reporter(connect=never, stop=Stop()))


def never() -> Any:
    """Nothing connects here."""
    raise AssertionError


@pytest.mark.parametrize(
    ("listens", "sent", "reason"),
    [
        (LOCAL, False, "connection refused"),
        (OPEN, False, "Shown only with the token"),
        (OPEN, True, "connection refused"),
    ],
)
def test_what_a_server_has_said_is_not_for_everybody(*, listens: str, sent: bool, reason: str) -> None:
    """It may name hosts and roles: from elsewhere one learns only that a daemon is not ready."""
    answers = api(SETTINGS, Access(host=listens, token=TOKEN))
    checks = answers.ready(Asked(words={}, has_token=sent, address="")).get_json()["checks"]
    assert reason in next(check["reason"] for check in checks if check["name"] == "postgres")


# The port


@contextmanager
def current(app: App) -> Iterator[web_server.WebServer]:
    """A server that answers so."""
    listening = web_server.listen(WebSettings(port=0))
    assert listening is not None
    stop = Stop()
    web = web_server.WebServer(listening, app, has_token=True)
    thread = threading.Thread(target=web.run, args=(stop,))
    thread.start()
    try:
        yield web
    finally:
        stop.request()
        thread.join()


def status(url: str, *, timeout: float = 60) -> int:
    """The status of an answer."""
    try:
        with urlopen(url, timeout=timeout) as answer:  # noqa: S310 - our own
            return int(answer.status)
    except HTTPError as refused:
        return refused.code


def test_a_postgres_that_hangs_holds_up_no_health() -> None:
    """However many ask what only Postgres knows: the rest is answered, and some of them are told to come again."""
    with closing(socket.create_server((LOCAL, 0))) as silent, ThreadPoolExecutor(20) as many:
        dsn = SecretStr(f"host={LOCAL} port={silent.getsockname()[1]}")
        postgres = PostgresSettings(dsn=dsn, connect_timeout_seconds=8)
        access = Access(host=LOCAL, token=None)
        answers = api(SETTINGS.model_copy(update={"postgres": postgres}), access).routes()
        with current(App(access, answers)) as web:
            asking = [many.submit(status, f"{web.address}/api/jobs") for _ in range(10)]
            assert status(f"{web.address}/healthz") == 200
            assert status(f"{web.address}/readyz") == 503
            assert not all(one.done() for one in asking)  # it has not waited for them
            assert {one.result() for one in asking} == {503}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET /metrics HTTP/1.1\r\nLong: " + b"x" * 16_500, 431),
        (b"POST /act/7 HTTP/1.1\r\nContent-Length: 100000\r\n\r\n", 413),
    ],
)
def test_a_request_that_is_too_large_is_refused(sent: bytes, expected: int) -> None:
    """Before the application sees it."""
    with current(APP) as web, socket.create_connection((LOCAL, urlsplit(web.address).port), timeout=20) as connection:
        connection.sendall(sent)
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == expected


@contextmanager
def taken() -> Iterator[int]:
    """A port that somebody else has."""
    with closing(socket.create_server((LOCAL, 0))) as other:
        yield other.getsockname()[1]


def test_a_port_that_was_asked_for_and_is_taken_is_an_error() -> None:
    """It names the setting; one that nobody asked for is left to who has it, and the next one taken."""
    with taken() as port, pytest.raises(ConfigError, match=f"port {port}") as refused:
        web_server.listen(WebSettings(port=port))
    assert "SYNCER_WEB_PORT" in refused.value.hint
    assert web_server.listen(WebSettings(port=None)) is None
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        web_server.listen(WebSettings(host="192.0.2.1", port=0))


def test_several_daemons_have_a_page_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default port is taken: the next one is used; all of them are: there is no page, and the daemon goes on."""
    with taken() as port:
        default = WebSettings.model_construct(host=LOCAL, port=port, _fields_set=set())
        found = web_server.listen(default)
        assert found is not None
        with closing(found):
            assert port < found.getsockname()[1] < port + web_server.PORTS_TRIED
        monkeypatch.setattr(web_server, "PORTS_TRIED", 1)
        assert web_server.listen(default) is None


def test_a_token_is_long() -> None:
    """A short one is refused, and so is one that no header can carry."""
    assert WebSettings().secret() is None
    assert WebSettings(token=SecretStr(TOKEN)).secret() == TOKEN
    for useless in ("short", "ein Schlüssel, den kein Kopf trägt", f"{TOKEN} ", f"two\n{TOKEN}"):
        with pytest.raises(ValidationError):
            WebSettings(token=SecretStr(useless))


# The page's scripts


def test_what_a_script_looks_up_is_in_the_page() -> None:
    """Each element by its id: a browser would stop at the first that is missing."""
    static = Path(web_server.__file__).parent / "static"
    has = set(re.findall(r'id="([^"]+)"', (static / "index.html").read_text("utf-8")))
    wanted = {one for file in static.glob("*.js") for one in re.findall(r'\bby\("([^"]+)"\)', file.read_text("utf-8"))}
    assert len(wanted) > 20
    assert wanted - has == set()
