"""Running tests with a rule taken out of syncer, to see them fail.

The test runs in a process of its own, in which `sitecustomize`, beside this file, patches a named part of syncer when
its module is imported (see `tests.mutations`); so it does in every process that the test starts. `-rP` shows how each
has failed: whether for the rule.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mutations import MUTATION
from tests.proof import REPOSITORY, Proof, Rule

DEADLINE = "SYNCER_TEST_DEADLINE_SECONDS"
"""Says how long a test waits for what is to come."""
_DEADLINE_SECONDS = 20
"""How long it waits in vain at each place, unless that is said: what has a rule taken out may never come."""
_TEST_SECONDS = 300
_END_SECONDS = 60


class WithoutRule(pytest.Item):
    """A test that is to fail, since it runs without a rule."""

    def __init__(self, *, rule: Rule, test: str, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]  # as pytest gives them
        self._rule = rule
        self._test = test

    def runtest(self) -> None:
        """Run the test without the rule.

        Raises:
            AssertionError: It passed, or could not run.
        """
        environment = {
            DEADLINE: str(_DEADLINE_SECONDS),
            **os.environ,
            MUTATION: json.dumps(self._rule.mutation()),
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
            ),
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=short"]
        command += ["-m", self.config.getoption("markexpr"), self._test]
        said = _said(command, environment, self.config.rootpath)
        closing = said.strip().rpartition("\n")[2]
        assert re.search(r"\b1 failed", closing), f"without its rule the test does not fail\n{said[-3000:]}"
        assert "error" not in closing, f"without its rule the test cannot run\n{said[-3000:]}"
        self.add_report_section("call", "failure", said)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:  # noqa: ARG002 - the signature is pytest's
        """What went wrong, without this module's own lines."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, None, str]:
        """What the test is called in the report."""
        return self.path, None, self.name


def _said(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    """What a test prints; it, and whatever it has started, is gone then.

    Raises:
        AssertionError: It does not end.
    """
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as running:
        try:
            return running.communicate(timeout=_TEST_SECONDS)[0].decode()
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # its servers have sessions of their own, and are ended by it
            with suppress(subprocess.TimeoutExpired):
                running.communicate(timeout=_END_SECONDS)
            raise AssertionError(f"without its rule the test does not end within {_TEST_SECONDS} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


def without_rules(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """For each test, and each rule that it names, a test that it fails without that rule."""
    made: dict[tuple[str, str, str], pytest.Item] = {}
    for item in items:
        mark = item.get_closest_marker("faces")
        if mark is None or item.parent is None:
            continue
        shown: Proof = mark.args[0]
        test = item.nodeid.partition("[")[0]
        for rule in shown.rules:
            name = f"{test.rpartition('::')[2]} without: {rule.name}"
            made[test, rule.name, repr(rule.instead)] = WithoutRule.from_parent(
                item.parent, name=name, rule=rule, test=test
            )
    return list(made.values())
