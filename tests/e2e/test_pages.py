"""What the pages tell a reader to do works, and shows what they say it shows: each page is carried out.

A fenced block says after its language what is done with it. A block without such a word is there to be read.

    run           carried out: ``sh`` by bash, which stops at the first error; ``sql`` by psql; ``python``
    fails         the same; it is to fail
    background    ``sh`` that goes on until the page ends: the daemon
    file=PATH     what is in that file from now on, below the folder that the page works in
    shows         what the block before it prints: each of its lines, in that order, among others; … stands for anything
    until         of a block that is carried out: again and again, until it prints what is shown below it

A page is followed in a folder of its own, with the settings of a world in the environment. A comment ``in: DOCUMENT``
begins a part that starts anew: the tables of that document of `config/documents` are there, and it is active.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.support import preloaded
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, REPOSITORY, USES_KAFKA, VERSIONS, World, wait_until

_FENCE = re.compile(r"^ *```(?P<language>\w+)(?P<words>[^\n]*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)
_IN = re.compile(r"^<!-- in: (\w+) -->$", re.MULTILINE)
_WORDS = re.compile(r"run|fails|background|shows|until|file=\S+")
_IS_AT_WORK = re.compile(b"worker.partitions_assigned" if USES_KAFKA else b"relay.led|relay.stood_by")
_OF_ELASTICSEARCH = re.compile(r"document_parsing_exception|flattened|dense_vector")
"""What OpenSearch calls by other names."""
_TABLES = {"file": REPOSITORY / "syncer" / "demo" / "filesystem.sql"}
_BASH = shutil.which("bash") or "bash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block that begins in this line; its words say what is done with it."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The file that it is, if it is one."""
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is followed in one world: a page up to its first comment ``in:``, or from one to the next.

    ``document`` is active at its beginning; none is if it is empty.
    """

    page: str
    document: str
    blocks: tuple[Block, ...]


def sections(page: Path) -> list[Part]:
    """The parts of a page; a word that means nothing is an error."""
    text = page.read_text("utf-8")
    blocks = []
    for match in _FENCE.finditer(text):
        words = tuple(match["words"].split())
        assert all(_WORDS.fullmatch(word) for word in words), f"{page.name}: {words}"
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(language=match["language"], words=words, text=match["text"], line=line))
    starts = [(0, ""), *((text.count("\n", 0, mark.start()) + 1, mark[1]) for mark in _IN.finditer(text))]
    ends = [*(line for line, _ in starts[1:]), text.count("\n") + 1]
    return [
        Part(page=page.name, document=document, blocks=tuple(block for block in blocks if begin <= block.line < end))
        for (begin, document), end in zip(starts, ends, strict=True)
    ]


PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
PARTS = [part for page in PAGES for part in sections(page) if any(block.words for block in part.blocks)]


def environment(world: World) -> dict[str, str]:
    """The world's, but for its config folder; the command; and a terminal that is wide enough for a table."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    settings = {name: value for name, value in world.environment.items() if name != "SYNCER_CONFIG"}
    return {**settings, "PATH": programs, "SYNCER_WEB_PORT": "0", "COLUMNS": "120"}


def output(world: World, block: Block) -> str:
    """What a block prints; unless it is to be tried again, it must succeed or fail as it says."""
    psql = str(world.sandbox.postgres.bin_folder / "psql")
    programs = {
        "sh": (_BASH, "-euo", "pipefail", "-c"),
        "python": (sys.executable, "-c"),
        "sql": (psql, "-XqAt", "--set=ON_ERROR_STOP=1", f"--dbname={world.dsn}", "--command"),
    }
    completed = subprocess.run(
        [*programs[block.language], block.text],
        cwd=world.folder,
        env=environment(world),
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_SECONDS,
        check=False,
    )
    printed = completed.stdout + completed.stderr
    if "until" not in block.words:
        assert (completed.returncode != 0) is ("fails" in block.words), f"exit code {completed.returncode}\n{printed}"
    return printed


def is_at_work(log_file: Path) -> bool:
    """Whether a daemon has logged that it works, or stands by."""
    return _IS_AT_WORK.search(log_file.read_bytes()) is not None


@contextmanager
def background(world: World, command: str) -> Iterator[None]:
    """A command of syncer at work until the block ends."""
    program, *arguments = command.split()
    assert program == "syncer", command
    log_file = world.folder / f"background-{uuid.uuid4().hex}.log"
    process = preloaded.Command(arguments, environment=environment(world), log_file=log_file, folder=world.folder)
    try:
        wait_until(lambda: is_at_work(log_file), what="it is at work", detail=log_file.read_text)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_SECONDS)


def carry_out(world: World, block: Block, shown: str) -> None:
    """Do what a block says, which then shows this."""
    if block.file is not None:
        file = world.folder / block.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, "utf-8")
    elif "until" in block.words:
        printed: list[str] = []

        def is_shown() -> bool:
            printed[:] = [output(world, block)]
            return not missing(shown, printed[0])

        wait_until(is_shown, what=f"it shows\n{shown}", detail=lambda: printed[0])
    else:
        printed = [output(world, block)]
        assert not missing(shown, printed[0]), f"it does not show {missing(shown, printed[0])!r}, but\n{printed[0]}"


def missing(shown: str, output: str) -> str:
    """The first line that is shown and not printed; empty if all are, in their order."""
    remaining = iter(" ".join(line.split()) for line in output.splitlines())
    for line in filter(None, (" ".join(line.split()) for line in shown.splitlines())):
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        if not any(pattern.search(text) for text in remaining):
            return line
    return ""


@pytest.fixture
def reader(empty_world: World) -> Iterator[World]:
    """Empty servers; the indices are deleted afterwards, whatever their names are."""
    yield empty_world
    with empty_world.elasticsearch() as client, suppress(psycopg.errors.UndefinedTable):
        for (index,) in empty_world.sql("SELECT index_name FROM syncer.document"):
            client.indices.delete(index=index, ignore_unavailable=True)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.page}:{part.blocks[0].line}")
def test_a_page_can_be_followed(reader: World, part: Part) -> None:
    """Each of its steps, in their order, ends as the page says."""
    shown = "".join(block.text for block in part.blocks if "shows" in block.words)
    if VERSIONS.opensearch and _OF_ELASTICSEARCH.search(shown):
        pytest.skip("the page shows what Elasticsearch calls by another name")
    reader.use(*filter(None, [part.document]))
    if part.document:
        shipped = REPOSITORY / "config" / "documents" / part.document / "document.yaml"
        shutil.copy(shipped, reader.config / "documents" / part.document)
        reader.sql(_TABLES.get(part.document, BLOG_SCHEMA).read_text("utf-8"))
        reader.migrate()
        reader.apply()
    with ExitStack() as cleanup:
        for block, following in zip(part.blocks, [*part.blocks[1:], None], strict=True):
            try:
                if "background" in block.words:
                    cleanup.enter_context(background(reader, block.text))
                elif block.words and "shows" not in block.words:
                    carry_out(
                        reader, block, following.text if following is not None and "shows" in following.words else ""
                    )
            except AssertionError as error:
                raise AssertionError(f"{part.page}, line {block.line}: {error}") from error
