"""Shows a model of the guide: requests, answers as tables, and how many documents a change has written."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan
from rich.markup import escape
from rich.table import Table

import syncer
from syncer.demo.model import SCHEMAS, Ask, Body, GuideModel, Row, Write, commit, execute, search
from syncer.demo.scene import Finale, Scene
from syncer.sandbox import Endpoints

_REQUEST_COLUMNS = 76
_PATIENCE_SECONDS = 60
_NAMED_MAX = 3

_Versions = dict[tuple[str, str], int]


def play(scene: Scene, endpoints: Endpoints, client: Elasticsearch, *, models: Sequence[GuideModel]) -> Finale:
    """Play models one after the other, each with its own rows in the same tables.

    Raises:
        SyncerError: An answer differs from the guide's, or the daemon has ended.
    """
    dsn = endpoints.postgres_dsn
    for name in dict.fromkeys(model.schema for model in models):
        execute(dsn, SCHEMAS[name].creation)
    for model in models:
        scene.act(f"The guide's model: {model.name}")
        scene.console.print(model.question)
        scene.console.print(f"Its documents: {_listed([f'config/documents/{name}' for name in model.documents])}")
        scene.activate(*model.documents)
        _Lesson(scene, dsn, client, model).play()
    scene.act("Every document is compared with its SELECT")
    holds = scene.syncer("verify", may_fail=True)
    return Finale(holds=holds, change=models[-1].encore, search=_as_curl(models[-1]))


class _Lesson:
    """Plays one model."""

    def __init__(self, scene: Scene, dsn: str, client: Elasticsearch, model: GuideModel) -> None:
        self._scene = scene
        self._console = scene.console
        self._dsn = dsn
        self._client = client
        self._model = model
        self._shown: set[str] = set()
        self._committed_at: float | None = None

    def play(self) -> None:
        """Load the rows, then take the steps."""
        rows = f"{SCHEMAS[self._model.schema].emptying}; {self._model.rows}"
        _wait_until_indexed(commit(self._dsn, rows))
        response: Body = {}
        tokens: list[str] = []
        before: _Versions = {}
        for step in self._model.steps:
            match step:
                case Ask():
                    response = self._ask(step, response)
                case Write():
                    self._say_what_was_written(tokens, before)
                    before = self._versions()
                    tokens = self._write(step)
        self._say_what_was_written(tokens, before)
        self._console.print(f"\n[bold]Its price:[/] {self._model.price}\n{self._model.choice}")

    def _write(self, write: Write) -> list[str]:
        self._console.print(f"\n[bold]{escape(write.title)}[/]")
        for statement in write.statements:
            background = " &" if len(write.statements) > 1 else ""
            self._console.print(f'$ psql -c "{statement}"{background}', markup=False, soft_wrap=True, style="cyan")
        tokens = commit(self._dsn, *write.statements)
        self._committed_at = time.monotonic()
        return tokens

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

        def trouble() -> str:
            return f"{self._model.name}: {ask.question}: not {ask.answer} but {ask.read.rows(response)}"

        self._scene.wait(is_answered, trouble, seconds_max=_PATIENCE_SECONDS)
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

    def _say_what_was_written(self, tokens: Sequence[str], before: _Versions) -> None:
        if not tokens:
            return
        _wait_until_indexed(tokens)
        after = self._versions()
        written = sorted(f"{name} {id_}" for (name, id_), one in after.items() if before.get((name, id_)) != one)
        which = f": {_listed(written)}" if 0 < len(written) <= _NAMED_MAX else ""
        self._console.print(f"For that change syncer wrote {len(written):,} of {len(after):,} documents{which}.")

    def _versions(self) -> _Versions:
        found: _Versions = {}
        for name in self._model.documents:
            self._client.indices.refresh(index=name)
            everything = scan(self._client, index=name, query={"_source": False, "version": True})
            found |= {(name, hit["_id"]): int(hit["_version"]) for hit in everything}
        return found


def _wait_until_indexed(tokens: Sequence[str]) -> None:
    for token in tokens:
        syncer.wait(token, timeout_seconds=_PATIENCE_SECONDS)


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
