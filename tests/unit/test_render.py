"""What commands print: in a pipe, lines are neither folded nor padded."""

from __future__ import annotations

import io

import pytest

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
