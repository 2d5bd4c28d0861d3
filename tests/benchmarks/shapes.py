"""What a change costs in a schema of the size that applications have: ``schemas/shapes``, an issue tracker.

Each change is made alone, and settled by `syncer wait`. The plain SELECTs, before and after, say which documents it
changes; Elasticsearch says how many were written, and how many operations it has carried out. Statements and their
times are those of Postgres' own log. All of it is seen from outside, so that any commit can be measured.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psycopg

from tests.benchmarks.report import Figure, say
from tests.benchmarks.trees import trees
from tests.benchmarks.world import SCHEMAS, Bench
from tests.support.world import World

_FOLDER = SCHEMAS / "shapes"
_ROUTED = ("notes", "events")
_TABLE = re.compile(r"^(?:UPDATE|INSERT INTO|DELETE FROM) (\w+)")
_UNREAD = "UPDATE {table} SET unread = coalesce(unread, '') || '+' WHERE id = 60"
_GROUPED = "UPDATE issues SET title = title || '*' WHERE id = {id}"
_EDITS = 10
_TOOK = re.compile(r"duration: ([\d.]+) ms  (?:statement|execute [^:]*): (.*?)(?=duration: |\Z)", re.DOTALL)
_REFUSED = re.compile(r"^(\w+): refused$", re.MULTILINE)
_BUILD = re.compile(r"EXECUTE syncer_\d")


@dataclass(kw_only=True)
class Tracker(World):
    """The issue tracker, kept by the program of one work tree."""

    title: str
    tree: Path
    contents: dict[str, dict[str, str]] = field(default_factory=dict)
    """By document and id, the row that its SELECT returns, as of the last look."""
    refused: set[str] = field(default_factory=set)
    """The documents that the program refuses, and that are left out."""

    @property
    def names(self) -> list[str]:
        """The documents: one of each file that is a SELECT."""
        return sorted({file.stem for file in _FOLDER.glob("*.sql")} - {"schema", "changes"} - self.refused)

    @property
    def log_file(self) -> Path:
        """Where Postgres logs."""
        return self.sandbox.postgres.log_file

    def load(self, tables: int) -> None:
        """Make the schema, and define the documents."""
        say(f"making {tables:,} tables for {self.title}")
        # The program of the tree, also where this one is the current folder.
        self.worker_settings = {"PYTHONPATH": str(self.tree), "PYTHONSAFEPATH": "1"}
        self.make()
        self.sql((_FOLDER / "schema.sql").read_text().replace(":tables", str(tables)))
        self.sql(f'ALTER DATABASE "{self.name}" SET log_min_duration_statement = 0')
        self.use()
        for name in self.names:
            folder = self.define(name, (_FOLDER / f"{name}.sql").read_text())
            shards = 3 if name in _ROUTED else 1
            settings = f'{{"settings": {{"number_of_shards": {shards}, "number_of_replicas": 0}}}}'
            (folder / "index.json").write_text(settings)
        self.run("migrate")

    def leave_out_refused(self) -> None:
        """Leave out what this program's plan refuses, as an earlier one does a key that it cannot derive."""
        self.refused |= {*_REFUSED.findall(self.syncer("plan").stdout)}
        for name in self.refused:
            shutil.rmtree(self.config / "documents" / name)

    def run(self, *arguments: str) -> float:
        """Run a command of the tree; how many seconds it took."""
        began = time.monotonic()
        done = self.syncer(*arguments)
        took = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(f"syncer {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return took

    def statements(self, offset: int) -> list[tuple[float, str]]:
        """The milliseconds and the text of each statement that was logged behind this offset of Postgres' log."""
        with self.log_file.open("rb") as log:
            log.seek(offset)
            return [(float(took), text) for took, text in _TOOK.findall(log.read().decode(errors="replace"))]

    def operations(self) -> dict[str, Counter[str]]:
        """By document, how many documents Elasticsearch has written and deleted, as it counts them."""
        counts: dict[str, Counter[str]] = {}
        with self.elasticsearch() as client:
            for name in self.names:
                counted = client.indices.stats(index=self.alias_of(name), metric="indexing").body["_all"]["primaries"]
                counts[name] = Counter(
                    writes=counted["indexing"]["index_total"], deletes=counted["indexing"]["delete_total"]
                )
        return counts

    def look(self) -> Counter[str]:
        """Run the SELECTs; return how many documents differ since the last look."""
        differing = Counter[str]()
        with psycopg.connect(self.dsn) as connection:
            for name in self.names:
                select = (_FOLDER / f"{name}.sql").read_text()
                query = f"SELECT d._id::text, d::text FROM ({select}) AS d"
                rows: dict[str, str] = dict(connection.execute(query.encode()).fetchall())
                earlier, self.contents[name] = self.contents.get(name, {}), rows
                differing[name] = sum(rows.get(id_) != earlier.get(id_) for id_ in rows.keys() | earlier.keys())
        return differing

    def change(self, statement: str) -> None:
        """Make a change, and return once it is indexed."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute(statement.encode())
            [(token,)] = connection.execute("SELECT syncer.token()").fetchall()
        self.run("wait", token)


def shapes(bench: Bench) -> Iterator[Figure]:
    """Operations and statements of a change, a plan and a status among many tables, of this and of another tree."""
    titles = []
    for title, tree in trees(bench):
        titles.append(title)
        with _tracker(bench, title, tree) as tracker:
            if title == bench.beside:
                tracker.leave_out_refused()
                bench.report.remarks.append(f"{title} refuses: {', '.join(tracker.refused) or 'nothing'}")
            yield from _measured(bench, tracker)
    bench.report.about = f"nine documents among {bench.tables:,} tables; the programs: {', '.join(titles)}"
    bench.report.remarks.append("another tree runs in this environment: its dependencies have to be the same")


@contextmanager
def _tracker(bench: Bench, title: str, tree: Path) -> Iterator[Tracker]:
    with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
        tracker = Tracker(
            sandbox=bench.sandbox,
            endpoints=bench.endpoints,
            folder=Path(folder),
            uses_kafka=False,
            is_preloaded=False,
            title=title,
            tree=tree,
        )
        try:
            tracker.load(bench.tables)
            yield tracker
        finally:
            tracker.unmake()


def _measured(bench: Bench, tracker: Tracker) -> Iterator[Figure]:
    title, rows = tracker.title, bench.report.rows
    offset = tracker.log_file.stat().st_size
    tracker.run("plan")  # not counted in time: Elasticsearch has just been started for the first tree
    yield Figure(f"{title}: plan, statements", len(tracker.statements(offset)), at_most=600)
    yield Figure(f"{title}: plan", median(tracker.run("plan") for _ in range(bench.passes)), unit="s")
    tracker.run("apply", "--yes")
    daemon = tracker.daemon()
    tracker.change("UPDATE users SET name = name WHERE id = 1")  # what is done for the first time
    for command in ("status", "doctor"):
        yield Figure(f"{title}: {command}", median(tracker.run(command) for _ in range(bench.passes)), unit="s")
    slowest = []
    for number in range(_EDITS):
        offset = tracker.log_file.stat().st_size
        tracker.change(_GROUPED.format(id=1000 + number))
        slowest.append(max(took for took, text in tracker.statements(offset) if _BUILD.search(text)))
    yield Figure(f"{title}: edit over a grouped view, the build", median(slowest), unit="ms")
    tracker.look()
    changes = [line for line in (_FOLDER / "changes.sql").read_text().splitlines() if _TABLE.match(line)]
    tables = [match[1] for line in changes if (match := _TABLE.match(line))]
    unread = [_UNREAD.format(table=table) for table in dict.fromkeys(tables)]
    total = Counter[str]()
    for statement in (*changes, *unread):
        earlier_operations = tracker.operations()
        tracker.change(statement)
        differing, counted = tracker.look(), Counter[str]()
        for name, operations in tracker.operations().items():
            counted.update(operations - earlier_operations[name])
        row = {"differ": differing.total(), "written": counted["writes"], "operations": counted.total()}
        rows[f"{title}: {statement[:70]}"] = {name: float(number) for name, number in row.items()}
        total.update(row)
    say(f"stopping the daemon of {title}")
    daemon.stop()
    if wrong := tracker.differences(*tracker.names):
        raise RuntimeError(f"{title}: {wrong[:3]}")
    yield Figure(f"{title}: documents written, for each that differs", total["written"] / total["differ"], at_most=1.1)
    yield Figure(f"{title}: operations, for each that differs", total["operations"] / total["differ"], at_most=1.3)
