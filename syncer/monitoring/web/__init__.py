"""Web: the status page, its API, metrics and health, over HTTP, from each daemon.

    server    the component: a port, a few threads           app       routes a request to its response
    access    what a request may read and do                 api       the responses, and the changes

Read-only unless a token is set. Listens on the loopback interface unless configured otherwise. docs/operating.md
"""

from __future__ import annotations

from syncer.base.lifecycle import Stop
from syncer.base.settings import Settings
from syncer.monitoring.daemons import Reporter
from syncer.monitoring.web.access import Access
from syncer.monitoring.web.api import Api
from syncer.monitoring.web.app import App
from syncer.monitoring.web.server import WebServer, listen

__all__ = ["page"]


def page(settings: Settings, *, stop: Stop, reporter: Reporter) -> WebServer | None:
    """Bind the port, and return the component that answers; None if there is no port for it.

    Raises:
        ConfigError: The port is not available, or the token's file cannot be read.
    """
    access = Access(host=settings.web.host, token=settings.web.secret())
    listening = listen(settings.web)
    if listening is None:
        return None
    return WebServer(listening, App(access, Api(settings, access, stop=stop, reporter=reporter).routes()))
