"""The API and the status page of a real daemon, the page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from syncer.jobs import queue
from syncer.sandbox.server import chosen_ports
from tests.faults.harness import needs_kafka
from tests.support.job_worker import held_backfill
from tests.support.network import ask
from tests.support.world import DEADLINE_SECONDS, REPOSITORY, Daemon, World, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOKEN = "a token that is long enough"  # noqa: S105 - of this test
BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body)
SELECT i, 1, 'title ' || i, 'body' FROM generate_series(1, 40) AS i;
INSERT INTO comments (id, post_id, name, comment, age) VALUES (1, 1, 'Alice', 'more', 5), (2, 2, 'Bob', 'less', 5);
"""
SECRET = "123456789"  # noqa: S105 - a value of a row
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (320, 700, 1280, 1900)
FITS = "document.documentElement.scrollWidth <= window.innerWidth"
# A control without a name, or a picture without a text, is lost on a screen reader.
NAMELESS = """
[...document.querySelectorAll('button, input, select, a, [role=img], table')].filter((found) => found.offsetParent
    && !(found.innerText || found.getAttribute('aria-label') || found.labels?.length || found.caption)).length
"""
DOCUMENTED = dict(
    re.findall(r"^\| `(syncer_\w+)` \| (\w+) \|", (REPOSITORY / "docs" / "metrics.md").read_text(), re.MULTILINE)
)


class Api:
    """What a client asks a daemon, with a token or without."""

    def __init__(self, daemon: Daemon, *, token: str = "") -> None:
        self.address = str(daemon.wait_for("web.listening")["address"])
        self._token = token

    def ask(self, path: str) -> tuple[int, str]:
        """The status of the answer, and its text."""
        return ask(self.address, path, token=self._token)

    def get(self, path: str, *, status: int = 200) -> Any:
        """The answer as data; it must have this status."""
        answered, text = self.ask(path)
        assert answered == status, text
        return json.loads(text)

    def wait_until_well(self, documents: int) -> Any:
        """The status, once all is well and so many documents are there."""

        def is_well() -> bool:
            state = json.loads(self.ask("/api/status")[1])
            return bool(state.get("is_well")) and sum(state["documents"][0]["targets"].values()) == documents

        wait_until(is_well, what=f"all is well, with {documents} documents", detail=lambda: self.ask("/api/status")[1])
        return self.get("/api/status")


def test_the_api_has_what_the_commands_print(world: World) -> None:
    """Status, jobs, dead letters and explain are those of the commands; without the token no value is shown."""
    world.sql("ALTER TABLE comments ALTER age TYPE bigint")
    world.apply()
    world.sql(BLOG)
    daemon = world.daemon(environment={"SYNCER_WEB_TOKEN": TOKEN})
    reader, operator = Api(daemon), Api(daemon, token=TOKEN)
    state = reader.wait_until_well(40)
    printed = json.loads(world.syncer("status", "--json").stdout)
    assert printed.keys() <= state.keys()
    assert state["documents"] == printed["documents"]
    assert state["access"] == {"takes_token": True, "sees_values": False}
    assert operator.get("/api/status")["access"]["sees_values"]

    world.sql(f"UPDATE comments SET age = {SECRET} WHERE id = 1")  # its mapping is short
    daemon.wait_for("document.dead_lettered")
    letters = reader.get("/api/dead-letters")
    assert (letters["letters"], letters["kinds"][0]["example"]) == (1, "1")
    assert reader.get("/api/explain/blogpost?id=1&values=true", status=401)["hint"]
    (explained,) = reader.get("/api/explain/blogpost?id=1")["indices"]
    assert (explained["state"], explained["dead_letter"]["error"]) == ("different", None)
    (explained,) = operator.get("/api/explain/blogpost?id=1&values=true")["indices"]
    assert SECRET not in explained["dead_letter"]["error"]  # what is stored has no values
    assert explained["postgres"]["source"]["comments"][0]["age"] == int(SECRET)
    assert operator.get("/api/explain/absent?id=1", status=404)["hint"] == "Active documents: blogpost"
    with world.connect() as connection:
        held_backfill(connection)
        world.sql(f"UPDATE syncer.job SET error = 'unforeseen {SECRET}'")
        for path in ("/api/jobs", "/api/status"):
            shows = partial(lambda path: SECRET in operator.ask(path)[1], path)
            wait_until(shows, what=f"{path} shows the error")
            assert SECRET not in reader.ask(path)[1]
    assert SECRET not in daemon.log_file.read_text()
    assert daemon.stop() == 0


@needs_kafka
def test_monitoring_finds_what_it_looks_for(world: World) -> None:
    """Health, and each documented metric once a daemon has done work of every kind; no value without a token."""
    world.sql(BLOG)
    daemon = world.daemon()
    api = Api(daemon)
    api.wait_until_well(40)
    assert {"web", "report", "relay"} <= {check["name"] for check in api.get("/healthz")["checks"]}
    wait_until(lambda: api.ask("/readyz")[0] == 200, what="it is ready", detail=lambda: api.ask("/readyz")[1])
    assert api.get("/api/dead-letters")["letters"] == 0
    assert api.get("/api/explain/blogpost?id=1&values=true", status=403)["hint"]
    assert api.get("/api/explain/blogpost?id=99")["indices"][0]["state"] == "absent"

    world.sql("UPDATE posts SET title = 'another' WHERE id < 4")
    world.prints("verify")
    exported: dict[str, str] = {}

    def has_all() -> bool:
        families = list(text_string_to_metric_families(api.ask("/metrics")[1]))
        ours = [family for family in families if family.name.startswith("syncer_")]
        named = {family.name + ("_total" if family.type == "counter" else ""): family for family in ours}
        assert {name: family.type for name, family in named.items()} == DOCUMENTED
        exported.update({name: family.type for name, family in named.items() if family.samples})
        return exported == DOCUMENTED

    with world.connect() as connection:
        held_backfill(connection)
        world.sql("UPDATE syncer.job SET documents_expected = 3")
        wait_until(has_all, what="all have a value", detail=lambda: str(DOCUMENTED.keys() - exported.keys()))
    silent = socket.create_connection(("127.0.0.1", urlsplit(api.address).port or 0))
    second = world.syncer("run", environment={"SYNCER_WEB_PORT": str(urlsplit(api.address).port)})
    assert (second.returncode, "SYNCER_WEB_PORT" in second.stderr) == (1, True)
    assert "daemon.started" not in second.stderr
    assert daemon.stop() == 0  # which it is not, if a component has not ended in time
    silent.close()


# The page


class Visit:
    """A page, with every request that it made and every error that it met."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.set_default_timeout(DEADLINE_SECONDS * 1000)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "assert") else None)

    def wait_for(self, selector: str, text: str) -> None:
        """Return once an element shows this text."""
        wait_until(lambda: text in self.text(selector), what=f"{selector} shows {text}", detail=self._detail)

    def text(self, selector: str) -> str:
        """What an element shows; nothing if it is not there."""
        element = self.page.locator(selector)
        return element.first.inner_text() if element.count() else ""

    def click(self, selector: str) -> None:
        """Click the first element that fits."""
        self.page.locator(selector).first.click()

    def _detail(self) -> str:
        return f"{self.text('body')}\n{self.errors}"


@pytest.fixture
def visit() -> Iterator[Visit]:
    """A page of a fresh browser: the Chromium of this machine, or else Playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs a browser: pip install -e '.[dev,browser]'")
    with playwright.sync_playwright() as driver:
        program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
        try:
            # root may not have a sandbox
            browser = driver.chromium.launch(executable_path=program, chromium_sandbox=False)
        except playwright.Error as error:
            if program is None and "Executable doesn't exist" in error.message:
                pytest.skip("needs a browser: install chromium, or run: playwright install chromium")
            raise
        yield Visit(browser.new_page())
        browser.close()


@pytest.fixture
def port() -> Iterator[int]:
    """A port that a daemon which is started again has again."""
    with chosen_ports(1) as (chosen_port,):
        yield chosen_port


def test_the_page_follows_what_happens(world: World, visit: Visit, port: int) -> None:
    """Numbers, jobs and dead letters are shown as they come, and its box works.

    It asks no other host for anything and meets no error; at no width does it have to be scrolled sideways; and when
    the daemon is gone it says so, and keeps what it knows.
    """
    world.sql("ALTER TABLE comments ALTER age TYPE bigint")
    world.apply()
    world.sql(BLOG)
    environment = {"SYNCER_WEB_TOKEN": TOKEN, "SYNCER_WEB_PORT": str(port)}
    daemon = world.daemon(environment=environment)
    address = str(daemon.wait_for("web.listening")["address"])
    visit.page.goto(address)
    visit.wait_for("#headline", "All is well")
    visit.wait_for("#at-index .big", "40")
    visit.wait_for("#at-relay .big", "leads")
    visit.wait_for("#documents", "blogpost")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (41, 1, 'another', 'body')")
    visit.wait_for("#at-index .big", "41")
    assert visit.text("#announced") == "All is well."  # read aloud: no number that changes all the time

    see_daemons_and_events(world, visit, daemon)
    see_the_past(visit)
    unlock(visit)
    look_up(visit)
    job = run_a_job(world, visit)
    refuse_to_fit_a_value(world, visit)
    assert visit.page.evaluate(NAMELESS) == 0
    visit.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    for width in WIDTHS:
        visit.page.set_viewport_size({"width": width, "height": 800})
        assert visit.page.evaluate(FITS), f"at {width} pixels"
    assert {urlsplit(url).netloc for url in visit.requests} == {urlsplit(address).netloc}
    assert visit.errors == []

    lose_and_find(world, visit, daemon, environment)
    visit.wait_for("#jobs", f"{job} ·")


def see_daemons_and_events(world: World, visit: Visit, daemon: Daemon) -> None:
    """Each daemon has a row; a document has its lag and its last verify, which is also an event."""
    visit.wait_for("#daemons tbody", str(daemon.process.pid))
    visit.wait_for("#daemons tbody", version("syncer-cdc"))
    visit.wait_for("#daemons tbody", "leads, 1 worker, job worker")
    visit.wait_for("#documents", "never")
    visit.wait_for("#documents .lag", " s")
    world.prints("verify")
    wait_until(lambda: "never" not in visit.text("#documents"), what="the last verify is shown")
    visit.wait_for("#events tbody", "41 documents, 0 drifted")
    visit.wait_for("#events tbody", "became the leader")
    assert visit.text("#events tbody").index("Verified") < visit.text("#events tbody").index("leader")


def see_the_past(visit: Visit) -> None:
    """A page that is opened later shows what was before it, in each form: by pointer, by keyboard, as a table."""
    (samples,) = visit.page.evaluate("fetch('/api/history').then((got) => got.json())").values()
    first, second = (
        visit.page.evaluate("(at) => new Date(at * 1000).toLocaleTimeString('en-GB')", sample["at"])
        for sample in samples[:2]
    )
    visit.page.reload()
    visit.click("#rate-plot summary")
    rows = visit.page.locator("#rate-plot tbody tr")
    wait_until(lambda: rows.count() >= min(len(samples), 30), what="the table has the samples of before")
    visit.page.focus("#rate-plot .drawing")
    visit.page.keyboard.press("Home")
    visit.wait_for("#rate-plot figcaption", first)
    assert visit.page.get_attribute("#rate-plot figcaption", "aria-live") == "polite"
    visit.page.keyboard.press("ArrowRight")
    visit.wait_for("#rate-plot figcaption", second)
    visit.page.focus("#look-id")
    visit.wait_for("#rate-plot figcaption", "now")
    visit.page.hover("#lag-plot .u-over")
    wait_until(lambda: "now" not in visit.text("#lag-plot figcaption"), what="the pointer's moment is read")
    assert "Lag: " in str(visit.page.get_attribute("#lag-plot .drawing", "aria-label"))


def unlock(visit: Visit) -> None:
    """With the token values are shown. A wrong one is refused; all of it by keyboard."""
    assert not visit.page.is_visible("#look-values")
    visit.page.focus("#unlock")
    visit.page.keyboard.press("Enter")
    visit.page.keyboard.type("another token, as long as it")
    visit.page.keyboard.press("Enter")
    visit.wait_for("#token-notice", "Wrong token")
    visit.errors.clear()  # the browser says of a 401 that it was one
    visit.page.keyboard.type(TOKEN)
    visit.page.keyboard.press("Enter")
    visit.wait_for("#unlock", "Lock")
    wait_until(lambda: visit.page.is_visible("#look-values"), what="it is unlocked")


def look_up(visit: Visit) -> None:
    """A document is explained, its values only if they are asked for."""
    visit.page.focus("#look-id")
    visit.page.keyboard.type("7")
    visit.page.keyboard.press("Enter")
    visit.wait_for("#explained", "Equal to its SELECT")
    assert "title 7" not in visit.text("#explained")
    visit.click("#look-values")
    visit.click("#look button")
    visit.wait_for("#explained", "title 7")


def run_a_job(world: World, visit: Visit) -> int:
    """A job is shown while it waits, while it is paused and once it is cancelled."""
    with world.connect() as connection:
        job = held_backfill(connection)
        visit.wait_for("#jobs", f"{job.id} · backfill")
        queue.pause(connection, job.id)
        visit.wait_for("#jobs", "paused")
        queue.cancel(connection, job.id)
        visit.wait_for("#jobs", "cancelled")
    return job.id


def refuse_to_fit_a_value(world: World, visit: Visit) -> None:
    """A dead letter is shown with its error, and explained; once it is gone all is well again."""
    world.sql(f"UPDATE comments SET age = {SECRET} WHERE id = 1")  # its mapping is short
    visit.wait_for("#headline", "1 document of blogpost could not be written")
    visit.wait_for("#problems", "What it means: SyncerDeadLetters")
    visit.wait_for("#letters", "document_parsing_exception")
    assert SECRET not in visit.text("#letters")
    visit.click("#letters summary")
    visit.wait_for("#letters pre", "out of range")
    visit.click("#letters a")
    visit.wait_for("#explained", "Dead-lettered")
    world.sql("UPDATE comments SET age = 6 WHERE id = 1")
    visit.wait_for("#letters-none", "There are no dead letters")
    visit.wait_for("#headline", "All is well")


def lose_and_find(world: World, visit: Visit, daemon: Daemon, environment: dict[str, str]) -> None:
    """The daemon goes away and comes back at the same place: the page says so, and goes on by itself."""
    assert daemon.stop() == 0
    visit.wait_for("#headline", "No connection to the daemon")
    assert visit.page.evaluate("document.body.classList.contains('lost')")
    assert visit.text("#at-index .big") == "41"
    world.daemon(environment=environment)
    visit.wait_for("#headline", "All is well")
    assert not visit.page.evaluate("document.body.classList.contains('lost')")
