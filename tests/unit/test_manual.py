"""The help of every command says how it is called and what its exit code means, and a shell completes its arguments."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from syncer import completion, manual
from syncer.cli import app
from tests.harness import REPOSITORY


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each command by its name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_help_flows_as_wide_as_the_terminal() -> None:
    """The ends of a docstring's lines are not those of the terminal; what is indented is to be read as it is."""
    assert (
        manual.flowing("One\nline.\n\nTwo\nlines.\n\n    as it\n    is")
        == "One line.\n\nTwo lines.\n\n    as it\n    is"
    )


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", ALL)
def test_help_ends_with_examples_and_exit_codes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example is one that the program takes, of this very command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids.txt").write_text("1\n")
    command = ALL[name]
    assert command.help
    assert command.epilog, "see syncer/manual.py"
    *lines, exit_code = command.epilog.split("\n\n")
    assert exit_code.startswith("Exit code: 0 ")
    examples = [line.strip() for line in lines if line.startswith("  ")]
    assert examples
    for example in examples:
        words = shlex.split(example.replace('eval "$(', "").replace(')"', ""))
        assert words[: 1 + len(name.split())] == ["syncer", *name.split()]
        arguments = [{"HOLDER": "x", "TOKEN": "1.a"}.get(one, one) for one in words[1 + len(name.split()) :]]
        command.make_context(name, arguments).close()


@pytest.mark.parametrize("words", ["", "apply", "dead-letters", "jobs list"])
def test_help_asks_for_no_value_of_a_flag(words: str) -> None:
    """What is given by its name alone has no type beside it; what takes a value has."""
    said = CliRunner().invoke(app, [*words.split(), "--help"]).output
    assert "--help" in said
    assert "bool" not in said
    assert ("NUMBER" in said) is (words == "apply")


def test_documents_are_completed_from_the_config_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is offered is what is there; where there is nothing, nothing is said."""
    monkeypatch.setenv("SYNCER_CONFIG", str(REPOSITORY / "config"))
    assert completion.documents("") == ["blogpost", "discussion", "file", "post", "user"]
    assert completion.documents("bl") == ["blogpost"]
    monkeypatch.setenv("SYNCER_CONFIG", str(tmp_path))
    assert completion.documents("") == []
    assert completion.parts("w") == ["workers"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("syncer ver", "verify"),
        ("syncer verify bl", "blogpost"),
        ("syncer backfill bl", "blogpost"),
        ("syncer explain bl", "blogpost"),
        ("syncer plan bl", "blogpost"),
        ("syncer dead-letters show bl", "blogpost"),
        ("syncer run --only w", "workers"),
    ],
)
def test_a_shell_is_offered_what_fits(line: str, offered: str) -> None:
    """As bash asks: the command itself answers, without any server."""
    words = line.split()
    environment = {
        **os.environ,
        "SYNCER_CONFIG": str(REPOSITORY / "config"),
        "_SYNCER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "import sys; sys.argv[0] = 'syncer'; from syncer.__main__ import main; main()"
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert said.stdout.split() == [offered], said.stderr
