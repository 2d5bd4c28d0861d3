"""The models of "Elasticsearch: The Definitive Guide": `guide.yaml`, read, and shown one by one.

A model is data: its documents, a few rows, questions with their answers, and changes between them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template
from typing import Any

import yaml
from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan
from rich.markup import escape
from rich.table import Table

from syncer.base.errors import SyncerError
from syncer.demo.stage import Stage

_NAMED_MAX = 3

Row = list[Any]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question with its answer."""

    question: str
    document: str
    request: str
    columns: dict[str, str]
    answer: list[Row]
    list_path: str = "hits.hits"
    values: dict[str, Any] = field(default_factory=dict)

    def rows(self, client: Elasticsearch, index: str, previous: Sequence[Row]) -> list[Row]:
        """Search what is committed and indexed, and return the answer, given the previous one."""
        client.indices.refresh(index=index)
        rows = _field_at(client.search(index=index, **json.loads(self.request_after(previous))).body, self.list_path)
        return [
            [_field_at(element, path) for path in self.columns.values()]
            for element in (rows if isinstance(rows, list) else [rows])
        ]

    def request_after(self, previous: Sequence[Row]) -> str:
        """Return the request as text, given the previous answer."""
        return Template(self.request).substitute(self.values, ids=json.dumps([row[0] for row in previous]))


@dataclass(frozen=True, kw_only=True)
class GuideChange:
    """SQL statements that the application runs concurrently."""

    change: str
    statements: list[str]


@dataclass(frozen=True, kw_only=True)
class Model:
    """One way to model a relationship; the file says what each part is."""

    name: str
    question: str
    price: str
    choice: str
    documents: list[str]
    schema: str
    rows: str
    steps: list[Ask | GuideChange]
    encore: str


def schema(name: str) -> str:
    """Return the SQL that creates the tables of an application: ``blog`` or ``filesystem``."""
    return files("syncer.demo").joinpath(f"{name}.sql").read_text("utf-8")


@functools.cache
def models() -> dict[str, Model]:
    """Return the models by name, in the guide's order."""
    content = yaml.safe_load(files("syncer.demo").joinpath("guide.yaml").read_text("utf-8"))
    for model in content:
        model["steps"] = [GuideChange(**step) if "change" in step else Ask(**step) for step in model["steps"]]
    return {model["name"]: Model(**model) for model in content}


def play(stage: Stage, shown: Sequence[Model]) -> str:
    """Show models one after the other, each with its own rows in the same tables; return another change to try.

    Raises:
        SyncerError: An answer differs from the guide's, or the daemon has ended.
    """
    for name in dict.fromkeys(model.schema for model in shown):
        with stage.connect() as connection:
            connection.execute(schema(name))
    for model in shown:
        stage.heading(f"The guide's model: {model.name}")
        stage.console.print(model.question)
        stage.console.print(f"Its documents: {', '.join(f'config/documents/{name}' for name in model.documents)}")
        stage.activate(*model.documents)
        stage.wait(stage.commit(model.rows))
        _play(stage, model)
        stage.console.print(f"\n[bold]Its price:[/] {escape(model.price)}\n{escape(model.choice)}")
    return shown[-1].encore


def _play(stage: Stage, model: Model) -> None:
    answer: list[Row] = []
    shown = ""
    for step in model.steps:
        if isinstance(step, GuideChange):
            _change(stage, model, step)
            continue
        stage.console.print(f"\n[bold]{escape(Template(step.question).substitute(step.values))}")
        request = f"GET /{step.document}/_search\n{step.request_after(answer).rstrip()}"
        stage.paste("The same request." if request in shown else request, style="cyan")
        shown += request
        answer = step.rows(stage.client, step.document, answer)
        if answer != step.answer:
            raise SyncerError(f"{model.name}: {step.question}: not {step.answer} but {answer}")
        table = Table(*step.columns, box=None, pad_edge=False, header_style="dim")
        for row in answer:
            table.add_row(*(escape(str(cell)) for cell in row))
        stage.console.print(table if answer else "Nothing.")


def _change(stage: Stage, model: Model, change: GuideChange) -> None:
    """Make a change, and print how many documents syncer wrote for it."""
    stage.console.print(f"\n[bold]{escape(change.change)}")
    for statement in change.statements:
        stage.paste(f'$ psql -c "{statement}"{" &" if len(change.statements) > 1 else ""}', style="cyan")
    versions_before = _versions(stage.client, model.documents)
    seconds = stage.wait(stage.commit(*change.statements))
    versions_now = _versions(stage.client, model.documents)
    changed = sorted(name for name, version in versions_now.items() if versions_before.get(name) != version)
    which = f": {', '.join(changed)}" if len(changed) <= _NAMED_MAX else ""
    stage.console.print(
        f"{seconds:.2f} s after the commit, searches show it. "
        f"syncer wrote {len(changed):,} of {len(versions_now):,} documents{which}."
    )


def _versions(client: Elasticsearch, documents: Sequence[str]) -> dict[str, int]:
    return {
        f"{name} {hit['_id']}": int(hit["_version"])
        for name in documents
        for hit in scan(client, index=name, query={"_source": False, "version": True})
    }


def _field_at(value: Any, path: str) -> Any:
    """Return what stands at a path such as ``hits.hits.0._source.user.name``, numbers rounded as people read them."""
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else value[name]
    return round(value, 2) if isinstance(value, float) else value
