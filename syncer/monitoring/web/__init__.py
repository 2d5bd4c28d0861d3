"""Web: the status page, its API, metrics and health, over HTTP, from each daemon.

    server    the component: a port, a few threads               files    the page itself
    app       routes a request to its response                   access   what a request may read and do
    facts     read-only responses                                actions  changes
    waits     until a transaction is indexed             words    parses and checks parameters
    waiting   at the start of a daemon, while a server is away
    runbook   what to do about a problem

Read-only unless a token is set. Listens on the loopback interface unless configured otherwise. docs/status-page.md
"""

from __future__ import annotations

import socket

from syncer.base.lifecycle import Component, Stop
from syncer.base.settings import Settings
from syncer.monitoring.poll import Poller
from syncer.monitoring.web.access import Access, Need
from syncer.monitoring.web.actions import JOB_ID_MAX, Actions
from syncer.monitoring.web.app import App, WebRoute
from syncer.monitoring.web.facts import Daemon, Facts
from syncer.monitoring.web.runbook import Runbook
from syncer.monitoring.web.server import WebServer, listen
from syncer.monitoring.web.waiting import Waiting, answering
from syncer.monitoring.web.waits import Waits

__all__ = ["Waiting", "answering", "listen", "routes", "serve"]

_JOB = f"/api/jobs/<int(max={JOB_ID_MAX}):job_id>"


def serve(settings: Settings, components: dict[str, Component], stop: Stop, listening: socket.socket | None) -> None:
    """Add the component "web" to those of a daemon, on the socket from `listen`, if there is one.

    Raises:
        ConfigError: The token's file cannot be read.
    """
    token = settings.web.secret()
    if listening is None:
        return
    poll = components["poll"]
    assert isinstance(poll, Poller)  # noqa: S101 - every daemon has one
    poll.components = (*components, "web")
    daemon = Daemon(settings=settings, poll=poll, stop=stop)
    access = Access(host=settings.web.host, token=token)
    app = App(access, routes(Facts(daemon, access), Actions(daemon), Waits(daemon)))
    components["web"] = WebServer(listening, app, has_token=token is not None)


def routes(facts: Facts, actions: Actions, waits: Waits) -> list[WebRoute]:
    """All routes."""
    return [
        WebRoute(path="/metrics", method="GET", need=Need.NOTHING, answer=facts.metrics),
        WebRoute(path="/healthz", method="GET", need=Need.NOTHING, answer=facts.alive),
        WebRoute(path="/readyz", method="GET", need=Need.NOTHING, answer=facts.ready),
        WebRoute(path="/runbook", method="GET", need=Need.NOTHING, answer=Runbook().show),
        WebRoute(path="/api/status", method="GET", need=Need.FACTS, answer=facts.status),
        WebRoute(path="/api/history", method="GET", need=Need.FACTS, answer=facts.history),
        WebRoute(path="/api/events", method="GET", need=Need.FACTS, answer=facts.events),
        WebRoute(path="/api/jobs", method="GET", need=Need.FACTS, answer=facts.jobs),
        WebRoute(path="/api/wait", method="GET", need=Need.FACTS, answer=waits.wait),
        WebRoute(path="/api/dead-letters", method="GET", need=Need.ROWS, answer=facts.letters),
        WebRoute(path="/api/explain/<document>", method="GET", need=Need.ROWS, answer=facts.explain),
        WebRoute(path=f"{_JOB}/pause", method="POST", need=Need.ACTIONS, answer=actions.pause),
        WebRoute(path=f"{_JOB}/resume", method="POST", need=Need.ACTIONS, answer=actions.resume),
        WebRoute(path=f"{_JOB}/cancel", method="POST", need=Need.ACTIONS, answer=actions.cancel),
        WebRoute(path="/api/dead-letters/retry", method="POST", need=Need.ACTIONS, answer=actions.retry),
    ]
