"""The help of a command shows how it is called, numbers are checked, and a shell completes arguments."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from syncer.base.errors import ConfigError
from syncer.cli import backfill, parameters
from syncer.cli.app import app
from tests.support import preloaded
from tests.support.world import REPOSITORY


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each command by its name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


ALL = dict(commands(typer.main.get_command(app)))
GROUPS = {name: one for name, one in typer.main.get_command(app).commands.items() if hasattr(one, "commands")}  # type: ignore[attr-defined]
EXAMPLES = {name: re.findall("`(.*?)`", command.epilog) for name, command in ALL.items() if command.epilog}


def test_the_examples_in_the_help_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a command line of this very command."""
    monkeypatch.chdir(tmp_path)
    for name, examples in EXAMPLES.items():
        assert examples, name
        for example in examples:
            words = shlex.split(example)
            assert words[: 1 + len(name.split())] == ["syncer", *name.split()]
            ALL[name].make_context(name, words[1 + len(name.split()) :]).close()


def test_every_command_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--help`` needs no setting and no server, and names every option and argument."""
    monkeypatch.setenv("COLUMNS", "120")
    for name in [one for one in os.environ if one.startswith("SYNCER_")]:
        monkeypatch.delenv(name)
    for name, command in {"": typer.main.get_command(app), **ALL}.items():
        result = CliRunner().invoke(app, [*name.split(), "--help"])
        assert result.exit_code == 0, result.output
        options = [option for one in command.params if not getattr(one, "hidden", False) for option in one.opts]
        missing = [one for one in options if one.startswith("--") and one not in result.output]
        assert missing == [], result.output
    assert EXAMPLES.keys() >= {"init", "migrate", "plan", "apply", "run", "status", "verify", "explain", "doctor"}


def test_each_command_is_described_in_ten_words() -> None:
    """One sentence, in a panel of the help."""
    described = {name: (one.help or "").partition("\n\n")[0] for name, one in (ALL | GROUPS).items()}
    assert {name: said for name, said in described.items() if len(said.split()) > 10 or said.count(".") != 1} == {}
    top = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {one.rich_help_panel for one in top.values() if not one.hidden} == {"Set up", "Operate", "Repair", "Try"}


def test_an_option_has_one_meaning() -> None:
    """The same name is explained by the same words, whatever command has it."""
    meanings: dict[str, set[str]] = {}
    for command in ALL.values():
        for option in command.params:
            for name in option.opts if option.param_type_name == "option" else ():
                meanings.setdefault(name, set()).add(option.help)
    assert {name: said for name, said in meanings.items() if len(said) > 1} == {}


USAGE = {
    **{f"apply --lock-timeout {one}": "Invalid value" for one in ("nan", "inf", "-1", "soon")},
    "verify --settle -inf": "Invalid value",
    "wait 1.a --timeout nan": "Invalid value",
    "backfill x --rate 0": "Invalid value",
    "backfill x --rate inf": "Invalid value",
    f"dead-letters list --offset {'9' * 4000}": "Invalid value",
    "jobs list first": "Invalid value",
    "run --only half": "'half' is not one of",
    "jobs list --state gone": "'gone' is not one of",
    "backfill": "Missing argument 'DOCUMENT'",
    "aply": "No such command 'aply'",
    "status --jsn": "--json",
    "apply blogpost --remove x": "cannot be combined",
    "backfill x --where true --ids -": "cannot be combined",
    "status --watch": "--watch needs a terminal",
    "status --watch --json": "cannot be combined",
    "migrate --json": "--json requires --status",
    "demo join --posts 200": "--posts applies only",
}


@pytest.mark.parametrize("line", USAGE)
def test_a_mistyped_command_is_explained(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """A number out of bounds, a word that is none of those to choose from, options that contradict: nothing is done."""
    monkeypatch.setenv("COLUMNS", "160")
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 2
    assert USAGE[line] in result.output


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (b"1\n\xff\n", "Line 2 of --ids is not valid UTF-8"),
        (b"1\n2\x003\n", "Line 2"),
        (b"1\n" + 600 * b"x", "512 bytes"),
    ],
)
def test_a_line_that_is_no_id_is_named(lines: bytes, said: str) -> None:
    """By its number, before anything is written."""
    with pytest.raises(ConfigError, match=said):
        list(backfill._ids(io.BytesIO(lines)))


def test_documents_are_completed_from_the_config_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is offered is what is there; where there is nothing, nothing is said."""
    monkeypatch.setenv("SYNCER_CONFIG", str(REPOSITORY / "config"))
    assert parameters.documents("") == ["blogpost", "discussion", "file", "post", "user"]
    assert parameters.documents("bl") == ["blogpost"]
    monkeypatch.setenv("SYNCER_CONFIG", str(tmp_path))
    assert parameters.documents("") == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [("syncer ver", "verify"), ("syncer dead-letters list bl", "blogpost"), ("syncer run --only w", "workers")],
)
def test_a_shell_is_offered_what_fits(line: str, offered: str) -> None:
    """As bash asks: the command itself answers, without any server."""
    environment = {
        **os.environ,
        "SYNCER_CONFIG": str(REPOSITORY / "config"),
        "_SYNCER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    assert preloaded.run(environment=environment, seconds=60).stdout.split() == [offered]
