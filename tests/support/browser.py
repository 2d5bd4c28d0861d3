"""A real browser for the status page, driven by Playwright; without one, its test is skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@contextmanager
def browser_page() -> Iterator[Page]:
    """A page of a fresh browser: the Chromium of this machine, or else Playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs a browser: pip install -e '.[dev,browser]'")
    with playwright.sync_playwright() as driver:
        program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
        try:
            # root may not have a sandbox
            browser = driver.chromium.launch(executable_path=program, chromium_sandbox=False)
        except playwright.Error as error:
            if program is None and "Executable doesn't exist" in error.message:
                pytest.skip("needs a browser: install chromium, or run: playwright install chromium")
            raise
        yield browser.new_page()
        browser.close()
