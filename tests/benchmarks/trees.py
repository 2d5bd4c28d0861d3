"""The program of another commit, to be measured beside this one on the same servers."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from tests.benchmarks.world import Bench
from tests.support.world import REPOSITORY


def trees(bench: Bench) -> Iterator[tuple[str, Path]]:
    """This tree and, if a commit is to be measured beside it, its files: not a work tree, which git would remember.

    It runs in this environment: its dependencies have to be the same.
    """
    yield "this tree", REPOSITORY
    if bench.beside:
        with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
            git = shutil.which("git") or "git"
            archive = subprocess.run([git, "archive", bench.beside], capture_output=True, check=True, cwd=REPOSITORY)
            with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
                files.extractall(folder, filter="data")
            yield bench.beside, Path(folder)
