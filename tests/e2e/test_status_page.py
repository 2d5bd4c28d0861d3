"""The status page in a real browser, on a real daemon."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from syncer.jobs import queue
from syncer.sandbox.server import chosen_ports
from tests.support.job_worker import held_backfill
from tests.support.world import DEADLINE_SECONDS, Daemon, World, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOKEN = "a token that is long enough"  # noqa: S105 - of this test
BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body)
SELECT i, 1, 'title ' || i, 'body' FROM generate_series(1, 40) AS i;
INSERT INTO comments (id, post_id, name, comment, age) VALUES (1, 1, 'Alice', 'more', 5);
"""
SECRET = "123456789"  # noqa: S105 - a value of a row
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (320, 700, 1280, 1900)
FITS = "document.documentElement.scrollWidth <= window.innerWidth"
# A control without a name, or a picture without a text, is lost on a screen reader.
NAMELESS = """
[...document.querySelectorAll('button, input, select, a, svg[role=img], table')].filter((found) => found.offsetParent
    && !(found.innerText || found.getAttribute('aria-label') || found.labels?.length || found.caption)).length
"""


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
        found = self.page.locator(selector)
        return found.first.inner_text() if found.count() else ""

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
        program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
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
    with chosen_ports(1) as (found,):
        yield found


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
    assert world.syncer("verify").returncode == 0
    wait_until(lambda: "never" not in visit.text("#documents"), what="the last verify is shown")
    visit.wait_for("#events tbody", "41 documents, 0 drifted")
    visit.wait_for("#events tbody", "became the leader")
    assert visit.text("#events tbody").index("Verified") < visit.text("#events tbody").index("leader")


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
        made = held_backfill(connection)
        visit.wait_for("#jobs", f"{made.id} · backfill")
        queue.pause(connection, made.id)
        visit.wait_for("#jobs", "paused")
        queue.cancel(connection, made.id)
        visit.wait_for("#jobs", "cancelled")
    return made.id


def refuse_to_fit_a_value(world: World, visit: Visit) -> None:
    """A dead letter is shown with its error, and explained; once it is gone all is well again."""
    world.sql(f"UPDATE comments SET age = {SECRET} WHERE id = 1")  # its mapping is short
    visit.wait_for("#headline", "1 document of blogpost could not be written")
    visit.wait_for("#problems", "What it means: SyncerDeadLetters")
    visit.wait_for("#letters", "document_parsing_exception")
    assert SECRET not in visit.text("#letters")
    visit.click("#letters summary")
    visit.wait_for("#letters pre", SECRET)
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
