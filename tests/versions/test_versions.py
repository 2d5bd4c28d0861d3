"""What is guaranteed holds on other versions, and on OpenSearch; docs/versions.md says when it was last run.

Each combination runs in a process of its own, with servers of its own. To run any other tests on a combination:

    SYNCER_TEST_VERSIONS='{"postgres": "14"}' pytest tests/scenarios/test_plan.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import KEPT_SANDBOX
from tests.support.world import OTHER_VERSIONS, REPOSITORY, WITHOUT_KAFKA

COMBINATIONS = (
    {"postgres": "14", "kafka": "3.9", "elasticsearch": "8"},
    {"postgres": "14", "kafka": "4.1", "elasticsearch": "9"},
    {"postgres": "15", "kafka": "4.1", "elasticsearch": "8"},
    {"postgres": "16", "kafka": "3.9", "elasticsearch": "9"},
    {"postgres": "17", "kafka": "4.4", "elasticsearch": "8"},
    {"postgres": "18", "kafka": "4.4", "elasticsearch": "9"},
    {"postgres": "14", "elasticsearch": "9"},
    {"postgres": "16", "elasticsearch": "8"},
    {"postgres": "18", "elasticsearch": "9"},
    {"postgres": "14", "kafka": "4.1", "opensearch": "2"},
    {"postgres": "18", "kafka": "4.4", "opensearch": "3"},
    {"postgres": "16", "opensearch": "2"},
    {"postgres": "17", "opensearch": "3"},
)
"""Each version is there at least twice, and each server in both ways of running; one without a Kafka runs without it.

The whole suite runs on 18, 4.1 and 8.
"""
SCENARIOS = (
    "tests/versions/test_servers.py",
    "tests/scenarios/test_blog_follows_postgres.py",
    "tests/scenarios/test_capture_writes_the_outbox.py",
    "tests/scenarios/test_every_way_to_write_is_captured.py",
    "tests/scenarios/test_types_of_users.py",
    "tests/scenarios/test_session_settings.py",
    "tests/scenarios/test_relay_publishes_in_snapshots.py",
    "tests/scenarios/test_versions_never_go_back.py",
    "tests/scenarios/test_indices_of_a_rebuild.py",
    "tests/scenarios/test_clusters_of_others.py",
    "tests/scenarios/test_documents_with_routing.py",
    "tests/scenarios/test_locks.py",
    "tests/faults/test_elasticsearch.py",
    "tests/faults/test_failovers.py",
    "tests/faults/test_processes.py",
)
ON_OPENSEARCH = (
    "tests/versions/test_servers.py",
    "tests/scenarios",
    "tests/e2e",
    *(f"tests/faults/test_{name}.py" for name in ("elasticsearch", "failovers", "locks", "opensearch", "processes")),
    "--deselect=tests/scenarios/test_secured_servers.py",  # the sandbox has no plugin for security
    *(f"--deselect=tests/e2e/test_{name}.py" for name in ("demo", "sandbox")),  # they start other servers
)
_SECONDS = 7200


@pytest.mark.versions
@pytest.mark.parametrize("versions", COMBINATIONS, ids=lambda combination: "-".join(map("".join, combination.items())))
def test_scenarios_hold_on(versions: dict[str, str]) -> None:
    """Changes are captured, published and indexed, and nothing is lost when daemons are killed."""
    environment = {**os.environ, OTHER_VERSIONS: json.dumps(versions)}
    environment.pop(KEPT_SANDBOX, None)
    if "kafka" not in versions:
        environment[WITHOUT_KAFKA] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ON_OPENSEARCH if "opensearch" in versions else SCENARIOS
    completed = subprocess.run(
        command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    print(completed.stdout.strip().rpartition("\n")[2])  # noqa: T201 - the closing line, for docs/versions.md
    assert completed.returncode == 0, completed.stdout[-10_000:]
