"""Web: the status page, its API, metrics and health, over HTTP, from each daemon.

    server    the stage: a port, a few threads               files    the page itself
    app       a request → an answer                          access   who may have what
    facts     what is answered                               actions  what may be done
    waits     until a transaction is indexed             words    what a request says, read as what it has to be

Read-only unless a token is set. Listens to this machine alone unless told otherwise. docs/status-page.md
"""

from __future__ import annotations

from syncer.lifecycle import Stage, Stop
from syncer.settings import Settings
from syncer.survey import Survey
from syncer.web.access import Access, Need
from syncer.web.actions import JOB_ID_MAX, Actions
from syncer.web.app import App, Route
from syncer.web.facts import Daemon, Facts
from syncer.web.server import WebServer, listen
from syncer.web.waits import Waits

_JOB = f"/api/jobs/<int(max={JOB_ID_MAX}):job_id>"


def serve(settings: Settings, stages: dict[str, Stage], stop: Stop) -> None:
    """Add the stage "web" to those of a daemon, unless there is to be none, or no port is to be had.

    Raises:
        ConfigError: The port that was asked for cannot be had, or the token's file not be read.
    """
    token = settings.web.secret()
    listening = listen(settings.web)
    if listening is None:
        return
    survey = stages["survey"]
    assert isinstance(survey, Survey)  # noqa: S101 - every daemon has one
    names = (*stages, "web")
    daemon = Daemon(settings=settings, survey=survey, stop=stop, stages=names)
    access = Access(host=settings.web.host, token=token)
    app = App(access, routes(Facts(daemon, access), Actions(daemon), Waits(daemon)))
    stages["web"] = WebServer(listening, app, has_token=token is not None)
    survey.stages = names


def routes(facts: Facts, actions: Actions, waits: Waits) -> list[Route]:
    """All that can be asked for."""
    return [
        Route(path="/metrics", method="GET", need=Need.NOTHING, answer=facts.metrics),
        Route(path="/healthz", method="GET", need=Need.NOTHING, answer=facts.alive),
        Route(path="/readyz", method="GET", need=Need.NOTHING, answer=facts.ready),
        Route(path="/api/status", method="GET", need=Need.FACTS, answer=facts.status),
        Route(path="/api/history", method="GET", need=Need.FACTS, answer=facts.history),
        Route(path="/api/jobs", method="GET", need=Need.FACTS, answer=facts.jobs),
        Route(path="/api/wait", method="GET", need=Need.FACTS, answer=waits.wait),
        Route(path="/api/dead-letters", method="GET", need=Need.ROWS, answer=facts.letters),
        Route(path="/api/explain/<document>", method="GET", need=Need.ROWS, answer=facts.explain),
        Route(path=f"{_JOB}/pause", method="POST", need=Need.ACTIONS, answer=actions.pause),
        Route(path=f"{_JOB}/resume", method="POST", need=Need.ACTIONS, answer=actions.resume),
        Route(path=f"{_JOB}/cancel", method="POST", need=Need.ACTIONS, answer=actions.cancel),
        Route(path="/api/dead-letters/retry", method="POST", need=Need.ACTIONS, answer=actions.retry),
        Route(path="/api/dead-letters/discard", method="POST", need=Need.ACTIONS, answer=actions.discard),
    ]
