"""Shows a model of the guide: requests, answers as tables, and how many documents a change has written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syncer.base.errors import SyncerError
from syncer.demo.daemon import DaemonProcess
from syncer.demo.model import SCHEMAS, Ask, Body, GuideModel, Row, Write, commit, execute, search
from syncer.demo.scene import Finale, Scene
from syncer.sandbox import Endpoints

_REQUEST_COLUMNS = 76
_LOOK_SECONDS = 0.02
_PATIENCE_SECONDS = 60
_NAMED_MAX = 3

# Equals the number of captured changes: no transaction rolls back here.
_CAPTURED = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM syncer.outbox_id_seq"

_Versions = dict[tuple[str, str], int]


class Lessons:
    """Plays models one after the other, each with its own rows in the same tables."""

    def __init__(self, models: Sequence[GuideModel]) -> None:
        self._models = models
        self._schemas: set[str] = set()

    def play(self, scene: Scene, endpoints: Endpoints, client: Elasticsearch) -> Finale:
        """Play all models.

        Raises:
            SyncerError: An answer differs from the guide's, or the daemon has ended.
        """
        for model in self._models:
            self._play(scene, endpoints.postgres_dsn, client, model)
        scene.act("Every document is compared with its SELECT")
        holds = scene.syncer("verify", may_fail=True)
        return Finale(holds=holds, change=self._models[-1].encore, search=_as_curl(self._models[-1]))

    def _play(self, scene: Scene, dsn: str, client: Elasticsearch, model: GuideModel) -> None:
        scene.act(f"The guide's model: {model.name}")
        scene.console.print(model.question)
        if model.schema not in self._schemas:
            execute(dsn, SCHEMAS[model.schema].creation)
            self._schemas.add(model.schema)
        scene.console.print(f"Its documents: {_listed([f'config/documents/{name}' for name in model.documents])}")
        daemon = scene.activate(*model.documents)
        _Lesson(scene.console, dsn, client, daemon, model).play()


class _Lesson:
    """Plays one model."""

    def __init__(
        self, console: Console, dsn: str, client: Elasticsearch, daemon: DaemonProcess, model: GuideModel
    ) -> None:
        self._console = console
        self._dsn = dsn
        self._client = client
        self._daemon = daemon
        self._model = model
        self._shown: set[str] = set()
        self._committed_at: float | None = None
        self._before: _Versions = {}

    def play(self) -> None:
        """Load the rows, then take the steps."""
        execute(self._dsn, f"{SCHEMAS[self._model.schema].emptying}; {self._model.rows}")
        self._wait_until_handled()
        response: Body = {}
        for step in self._model.steps:
            match step:
                case Ask():
                    response = self._ask(step, response)
                case Write():
                    self._say_what_was_written()
                    self._write(step)
        self._say_what_was_written()
        self._console.print(f"\n[bold]Its price:[/] {self._model.price}\n{self._model.choice}")

    def _write(self, write: Write) -> None:
        self._console.print(f"\n[bold]{escape(write.title)}[/]")
        for statement in write.statements:
            background = " &" if len(write.statements) > 1 else ""
            self._console.print(f'$ psql -c "{statement}"{background}', markup=False, soft_wrap=True, style="cyan")
        self._before = self._versions()
        commit(self._dsn, write)
        self._committed_at = time.monotonic()

    def _ask(self, ask: Ask, before: Body) -> Body:
        self._console.print(f"\n[bold]{escape(ask.question)}[/]")
        request = ask.request(before)
        said = f"GET /{ask.document}/_search\n{as_text(request)}"
        if said in self._shown:
            said = "The same request."
        self._shown.add(said)
        self._console.print(said, markup=False, soft_wrap=True, style="cyan")
        response = self._answer(ask, request)
        self._show(ask.read.columns, ask.answer)
        return response

    def _answer(self, ask: Ask, request: Body) -> Body:
        """Return the response once it is the expected one."""
        response: Body = {}

        def is_answered() -> bool:
            nonlocal response
            response = search(self._client, ask.document, request)
            return tuple(ask.read.rows(response)) == ask.answer

        self._wait(is_answered, lambda: f"{ask.question}: not {ask.answer} but {ask.read.rows(response)}")
        if self._committed_at is not None:
            seconds = time.monotonic() - self._committed_at
            self._console.print(f"[green]The answer, {seconds:.2f} s after the commit:")
            self._committed_at = None
        return response

    def _show(self, columns: Row, rows: Sequence[Row]) -> None:
        if not rows:
            self._console.print("→ nothing")
            return
        table = Table(*(f"→ {columns[0]}", *columns[1:]), box=None, pad_edge=False, header_style="dim")
        for first, *others in rows:
            table.add_row(f"  {escape(first)}", *(escape(cell) for cell in others))
        self._console.print(table)

    def _say_what_was_written(self) -> None:
        if not self._before:
            return
        self._wait_until_handled()
        after = self._versions()
        written = sorted(f"{name} {id_}" for (name, id_), one in after.items() if self._before.get((name, id_)) != one)
        which = f": {_listed(written)}" if 0 < len(written) <= _NAMED_MAX else ""
        self._console.print(f"For that change syncer wrote {len(written):,} of {len(after):,} documents{which}.")

    def _versions(self) -> _Versions:
        found: _Versions = {}
        for name in self._model.documents:
            self._client.indices.refresh(index=name)
            everything = scan(self._client, index=name, query={"_source": False, "version": True})
            found |= {(name, hit["_id"]): int(hit["_version"]) for hit in everything}
        return found

    def _wait_until_handled(self) -> None:
        """Return once the daemon has handled every committed change."""
        with psycopg.connect(self._dsn) as connection:
            captured: Any = connection.execute(_CAPTURED).fetchall()[0][0]
        self._wait(lambda: self._daemon.handled() >= captured, lambda: f"{captured} changes are not handled")

    def _wait(self, is_over: Callable[[], bool], trouble: Callable[[], str]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not is_over():
            self._daemon.handled()  # raises if the daemon has ended
            if time.monotonic() > deadline:
                raise SyncerError(
                    f"{self._model.name}: {trouble()}, within {_PATIENCE_SECONDS} s",
                    hint=f"See {self._daemon.log_file}",
                )
            time.sleep(_LOOK_SECONDS)


def as_text(value: Any, *, indent: int = 0, before: int = 0) -> str:
    """Format JSON for reading: values that fit stay on one line, of which ``before`` columns are taken."""
    on_one_line = json.dumps(value)
    if indent + before + len(on_one_line) <= _REQUEST_COLUMNS or not isinstance(value, dict | list):
        return on_one_line
    inner = indent + 2
    if isinstance(value, dict):
        keys = {json.dumps(key) + ": ": one for key, one in value.items()}
        lines = [key + as_text(one, indent=inner, before=len(key)) for key, one in keys.items()]
        opening, closing = "{}"
    else:
        lines = [as_text(one, indent=inner) for one in value]
        opening, closing = "[]"
    body = ",\n".join(" " * inner + line for line in lines)
    return f"{opening}\n{body}\n{' ' * indent}{closing}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _as_curl(model: GuideModel) -> str:
    """Return the last question with a fixed request, as arguments to curl."""
    ask = next(step for step in reversed(model.steps) if isinstance(step, Ask) and not callable(step.body))
    body = json.dumps(ask.request({}))
    return f"'{{url}}/{ask.document}/_search?pretty' -H 'Content-Type: application/json' -d '{body}'"
