"""A real browser, driven over the pipe of its own debugging protocol: no driver, no port, no library.

It notes every request that a page makes and every error that it meets, so that a test can say there was no other.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness import DEADLINE_SECONDS, wait_until

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # root may not have one
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
)
# The browser reads commands from 3 and writes answers to 4.
_ON_ITS_PIPES = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def program() -> str | None:
    """A browser of this machine; None if there is none."""
    return next((found for one in PROGRAMS if (found := shutil.which(one))), None)


class Browser:
    """One page of a browser.

    Args:
        commands: Where commands go.
        answers: Where answers and events come from.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._rest = b""
        self._last_id = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []

    def open(self, address: str) -> None:
        """Go there."""
        if self._session is None:
            target = self.command("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.command(f"{domain}.enable")
        self.command("Page.navigate", url=address)

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have the browser do something; what it answers."""
        self._last_id += 1
        said = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            said["sessionId"] = self._session
        os.write(self._commands, json.dumps(said).encode() + b"\0")
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            for one in self._messages(deadline, method):
                if one.get("id") == self._last_id:
                    assert "error" not in one, f"{method}: {one['error']}"
                    result: dict[str, Any] = one["result"]
                    return result
                self._note(one)

    def evaluate(self, script: str) -> Any:
        """What JavaScript says."""
        said = self.command("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def text(self, selector: str) -> str:
        """What an element says; nothing, if it is not there or not shown."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_for(self, selector: str, said: str) -> None:
        """Return once an element says this."""
        wait_until(
            lambda: said in self.text(selector),
            what=f"{selector} says {said}",
            detail=lambda: f"{self.text('body')}\n{self.errors}",
        )

    def click(self, selector: str) -> None:
        """Click on an element, as far as a script can."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def focus(self, selector: str) -> None:
        """Put the focus somewhere."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")

    def type(self, text: str) -> None:
        """Type where the focus is."""
        self.command("Input.insertText", text=text)

    def press(self, key: str, *, code: int) -> None:
        """Press a key that is no letter: its name, and its number in Windows."""
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.command("Input.dispatchKeyEvent", type="keyDown", **pressed, **({"text": "\r"} if key == "Enter" else {}))
        self.command("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def show(self, *, width: int, height: int, scheme: str = "light", motion: str = "no-preference") -> None:
        """Be of this size, and prefer this."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        self.command("Emulation.setEmulatedMedia", features=[{"name": k, "value": v} for k, v in features.items()])

    def picture(self, file: Path) -> None:
        """Take a picture of the whole page."""
        said = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(said["data"]))

    def _messages(self, deadline: float, what: str) -> Iterator[dict[str, Any]]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self._answers], [], [], max(0.0, left))
            assert readable, f"the browser does not answer to {what}"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        *whole, self._rest = self._rest.split(b"\0")
        return (json.loads(one) for one in whole)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "assert"):
                self.errors.append(json.dumps(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(json.dumps(parameters["entry"]))


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """A browser with nothing in its memory, for as long as it is needed."""
    commands_in, commands_out = os.pipe()
    answers_in, answers_out = os.pipe()
    with tempfile.TemporaryDirectory(prefix="syncer-browser-", ignore_cleanup_errors=True) as profile:
        options = [*_OPTIONS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", _ON_ITS_PIPES, str(commands_in), str(answers_out), path, *options],
            pass_fds=(commands_in, answers_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_in)
        os.close(answers_out)
        try:
            yield Browser(commands_out, answers_in)
        finally:
            os.close(commands_out)  # its pipe is its life
            os.close(answers_in)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
