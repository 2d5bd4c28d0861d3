"""The status page in a real browser, on a real daemon."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from syncer import store
from syncer.job import JobKind, unfinished
from syncer.jobs import create
from syncer.sandbox.server import chosen_ports
from tests.browser import Browser, browser, program
from tests.harness import Daemon, World, wait_until

TOKEN = "a token that is long enough"  # noqa: S105 - nobody else's
BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body)
SELECT i, 1, 'title ' || i, 'body' FROM generate_series(1, 40) AS i;
INSERT INTO comments (id, post_id, name, comment, age) VALUES (1, 1, 'Alice', 'more', 5);
"""
SECRET = "123456789"  # noqa: S105 - a value of a row
WIDTHS = (320, 700, 1280, 1900)
FITS = "document.documentElement.scrollWidth <= window.innerWidth"
# A control that shows no name, or a picture without a text, is one that who does not see it cannot use.
NAMELESS = """
[...document.querySelectorAll('button, input, select, a, svg[role=img], table')].filter((one) => one.offsetParent
    && !(one.innerText || one.getAttribute('aria-label') || one.labels?.length || one.caption)).length
"""


@pytest.fixture
def page() -> Iterator[Browser]:
    """A real browser."""
    path = program()
    if path is None:
        pytest.skip("no chromium on this machine; Debian has it: apt-get install chromium")
    with browser(path) as one:
        yield one


def test_the_page_follows_what_happens(world: World, page: Browser) -> None:
    """Numbers, jobs and dead letters are shown as they come, and its buttons and its box work.

    It asks no other host for anything and meets no error; at no width does it have to be scrolled sideways; and when
    the daemon is gone it says so, and keeps what it knows.
    """
    world.sql("ALTER TABLE comments ALTER age TYPE bigint")
    world.apply()
    world.sql(BLOG)
    with chosen_ports(1) as (port,):  # which is there again for who comes back
        follow(world, page, {"SYNCER_WEB_TOKEN": TOKEN, "SYNCER_WEB_PORT": str(port), "SYNCER_METRICS_SECONDS": "1"})


def follow(world: World, page: Browser, environment: dict[str, str]) -> None:
    """All of it, one after the other."""
    daemon = world.daemon(environment=environment)
    address = str(daemon.wait_for("web.listening")["address"])
    page.open(address)
    page.wait_for("#headline", "All is well")
    page.wait_for("#at-index .big", "40")
    page.wait_for("#at-relay .big", "leads")
    page.wait_for("#documents", "blogpost")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (41, 1, 'another', 'body')")
    page.wait_for("#at-index .big", "41")
    assert page.text("#told") == "All is well."  # which is read aloud, and has no number that changes all the time

    unlock(page)
    look_up(page)
    job = pause(world, page)
    refuse_to_fit_a_value(world, page)
    read_the_plot(page)
    assert page.evaluate(NAMELESS) == 0
    for width in WIDTHS:
        page.show(width=width, height=800, scheme="dark", motion="reduce")
        assert page.evaluate(FITS), f"at {width} pixels"
    assert {urlsplit(one).netloc for one in page.requests} == {urlsplit(address).netloc}
    assert page.errors == []

    lose_and_find(world, page, daemon, environment)
    page.wait_for("#jobs", f"{job} ·")


def unlock(page: Browser) -> None:
    """A wrong token is refused and said so; with the right one there are buttons; all of it by keyboard."""
    page.focus("#unlock")
    page.press("Enter", code=13)
    page.type("another token, as long as it")
    page.press("Enter", code=13)
    page.wait_for("#token-said", "not the token")
    page.errors.clear()  # the browser says of a 401 that it was one
    page.type(TOKEN)
    page.press("Enter", code=13)
    page.wait_for("#unlock", "Lock")


def look_up(page: Browser) -> None:
    """A document is explained, its values only if they are asked for."""
    page.focus("#look-id")
    page.type("7")
    page.press("Enter", code=13)
    page.wait_for("#explained", "Equal to its SELECT")
    assert "title 7" not in page.text("#explained")
    page.click("#look-values")
    page.click("#look button")
    page.wait_for("#explained", "title 7")


def pause(world: World, page: Browser) -> int:
    """A job is shown, paused, and cancelled once one is sure."""
    with world.connect() as connection:
        made = create(connection, store.served(connection)["blogpost"], JobKind.BACKFILL, rate=0.1)
        assert made is not None
        page.wait_for("#jobs", f"{made.id} · backfill")
        page.click("#jobs button")
        page.wait_for("#jobs-said", f"Job {made.id} is paused")
        page.wait_for("#jobs", "paused")
        page.wait_for("#jobs button", "Resume")
        assert unfinished(connection)[0].is_paused
        page.click("#jobs span button")
        page.click("#jobs button.danger")
        page.wait_for("#jobs-said", f"Job {made.id} is cancelled")
        assert unfinished(connection) == []
    return made.id


def refuse_to_fit_a_value(world: World, page: Browser) -> None:
    """A dead letter is shown with its field, explained, retried and discarded; once it is gone all is well again."""
    world.sql(f"UPDATE comments SET age = {SECRET} WHERE id = 1")  # its mapping is short
    page.wait_for("#headline", "1 document of blogpost could not be written")
    page.wait_for("#letters", "comments.age")
    page.click("#letters a")
    page.wait_for("#explained", "Parked")
    page.click("#letters button")
    page.wait_for("#letters-said", "tries 1 document again")
    page.click("#letters span button")
    page.click("#letters button.danger")
    page.wait_for("#letters-said", "1 dead letter forgotten")
    world.sql("UPDATE comments SET age = 6 WHERE id = 1")
    page.wait_for("#letters-none", "Everything could be written")
    page.wait_for("#headline", "All is well")


def read_the_plot(page: Browser) -> None:
    """The plot is read with the arrow keys, and there is a table of it."""
    page.focus("#lag-plot svg")
    page.press("ArrowLeft", code=37)
    page.press("ArrowLeft", code=37)
    wait_until(lambda: ":" in page.text("#lag-plot figcaption"), what="a moment is read")
    page.click("#lag-plot summary")
    wait_until(lambda: page.evaluate("document.querySelectorAll('#lag-plot tbody tr').length") > 1, what="a table")


def lose_and_find(world: World, page: Browser, daemon: Daemon, environment: dict[str, str]) -> None:
    """The daemon goes away and comes back at the same place: the page says so, and goes on by itself."""
    assert daemon.stop() == 0
    page.wait_for("#headline", "No connection to the daemon")
    assert page.evaluate("document.body.classList.contains('lost')")
    assert page.text("#at-index .big") == "41"
    world.daemon(environment=environment)
    page.wait_for("#headline", "All is well")
    assert not page.evaluate("document.body.classList.contains('lost')")
