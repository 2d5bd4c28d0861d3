"""The help of a command shows how it is called, and a mistyped command is explained."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from syncer.cli.app import app


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each command by its name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


ROOT: Any = typer.main.get_command(app)
ALL = dict(commands(ROOT))


def test_the_examples_in_the_help_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a command line of this very command; `--help` itself needs no setting and no server."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SYNCER_")]:
        monkeypatch.delenv(name)
    for name, command in ALL.items():
        assert CliRunner().invoke(app, [*name.split(), "--help"]).exit_code == 0
        for example in re.findall("`(.*?)`", command.epilog or ""):
            words = shlex.split(example)
            assert words[: 1 + len(name.split())] == ["syncer", *name.split()]
            command.make_context(name, words[1 + len(name.split()) :]).close()
    assert all(ALL[name].epilog for name in ("init", "migrate", "plan", "run", "verify"))


def test_the_interface_is_small_and_an_option_has_one_meaning() -> None:
    """A new option enters only if an old one leaves."""
    meanings: dict[str, set[str]] = {}
    options = [option for command in ALL.values() for option in command.params if option.param_type_name == "option"]
    for option in options:
        meanings.setdefault(option.opts[0], set()).add(option.help)
    assert {name: texts for name, texts in meanings.items() if len(texts) > 1} == {}
    assert (len(ALL) <= 26, len(options) <= 59) == (True, True)


USAGE = {
    **{f"apply --lock-timeout {value}": "Invalid value" for value in ("nan", "inf", "-1", "soon")},
    "wait 1.a --timeout nan": "Invalid value",
    f"dead-letters list --limit {'9' * 4000}": "Invalid value",
    **{f"events --since {value}": "Invalid value" for value in ("5", "-5m", "1y", "yesterday")},
    "jobs list first": "Invalid value",
    "run --only half": "'half' is not one of",
    "backfill": "Missing argument 'DOCUMENT'",
    "verify --index posts": "belong together",
    "verify --settle 1": "belong together",
    "verify --settle inf": "Invalid value",
    "verify posts --select /dev/null --index posts": "does not go with DOCUMENT",
    "verify --repair --select /dev/null --index posts": "does not go with DOCUMENT",
    "aply": "No such command 'aply'",
    "status --jsn": "--json",
    "doctor blogpost": "unexpected extra argument",
    "status --watch": "No such option",
}


@pytest.mark.parametrize("line", USAGE)
def test_a_mistyped_command_is_explained(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """A number out of bounds, a word that is none of those to choose from, options that contradict: nothing is done."""
    monkeypatch.setenv("COLUMNS", "160")
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 2
    assert USAGE[line] in result.output


_BESIDE = {"sqlglot", "syncer.cli.init", "syncer.locks", "syncer.sandbox"}
UNNEEDED = {
    "run": {*_BESIDE, "syncer.apply", "syncer.monitoring.status"},
    "status": {*_BESIDE, "syncer.apply.plan", "syncer.daemon", "syncer.worker", "syncer.relay"},
    "doctor": {*_BESIDE, "syncer.apply.plan", "syncer.daemon", "syncer.worker", "syncer.relay"},
    "plan": {*_BESIDE, "syncer.monitoring.doctor"},
}


@pytest.mark.parametrize("command", UNNEEDED)
def test_a_command_loads_no_modules_of_others(command: str) -> None:
    """Rule: to start a command is mostly to load modules, so it loads its own; sqlglot only to read a SELECT."""
    program = "import sys; from syncer.cli.app import app; app(standalone_mode=False); print(*sys.modules)"
    arguments = [sys.executable, "-c", program, command, "--help"]
    printed = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    assert f" {command} [OPTIONS]" in printed
    assert UNNEEDED[command].intersection(printed.splitlines()[-1].split()) == set()
