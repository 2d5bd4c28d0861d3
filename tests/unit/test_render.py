"""What commands print: in a pipe, lines are neither folded nor padded; Ctrl-C shows no traceback."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Never

import pytest

from syncer.__main__ import main
from syncer.cli import render


def test_a_table_in_a_pipe_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short is aligned; a long cell moves only its own line, and no line ends with blanks."""
    pipe = io.StringIO()
    monkeypatch.setattr(render, "out", render.console(pipe))
    long = "x" * 500
    render.show_table(
        ("a", "event", "host"), [("1", long, "h"), ("22", ("short", "red"), ""), ("3", "two\nlines", "z")]
    )
    lines = pipe.getvalue().splitlines()
    assert lines[0] == ""
    assert lines[2] == f"1   {long}  h"
    assert lines[3] == "22  short"
    assert [line.rstrip() for line in lines] == lines
    assert max(len(line) for line in lines if long not in line) < 60


def test_an_interrupt_while_an_error_is_shown_ends_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As at any other time: the exit code says that it was interrupted."""

    def interrupt(_: object) -> Never:
        raise KeyboardInterrupt

    monkeypatch.setattr(render, "show_error", interrupt)
    monkeypatch.setattr("sys.argv", ["syncer", "--config", str(tmp_path / "missing"), "plan"])
    with pytest.raises(SystemExit, match="130"):
        main()
