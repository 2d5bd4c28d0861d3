"""`syncer doctor` as a person and a script meet it."""

from __future__ import annotations

import json
import re
import time

import pytest

from syncer.doctor.examination import CHECKS
from syncer.doctor.symptom import Group
from tests.harness import REPOSITORY, World

AWAY = {
    "SYNCER_POSTGRES_DSN": "postgresql://postgres@127.0.0.1:9/nobody",
    "SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
    "SYNCER_ELASTICSEARCH_URL": "http://127.0.0.1:9",
}


def test_from_nothing_to_all_well_by_what_the_doctor_says(empty_world: World) -> None:
    """Whoever does what he says, from an empty database on, comes to where nothing is wrong."""
    world = empty_world
    world.sql((REPOSITORY / "syncer" / "demo" / "blog.sql").read_text())
    for number, (said, command) in enumerate(
        (
            ("The database has no syncer schema", ["migrate"]),
            ("No document is in force", ["apply", "--yes"]),
            ("No relay leads", []),
        )
    ):
        seen = world.syncer("doctor")
        assert seen.returncode == 1, (number, seen.stdout, seen.stderr)
        assert said in seen.stdout
        assert f"syncer {command[0] if command else 'run'}" in seen.stdout
        if command:
            assert world.syncer(*command).returncode == 0
        else:
            daemon = world.daemon()
            daemon.wait_for("relay.led")
            daemon.wait_for("worker.partitions_assigned")
    began = time.monotonic()
    seen = world.syncer("doctor", "--json")
    took = time.monotonic() - began
    report = json.loads(seen.stdout)
    assert seen.returncode == 0, report
    assert report["is_well"]
    assert report["wrong"] == 0
    assert {one["id"] for one in report["findings"]} == {one.id for one in CHECKS}
    assert 0 < report["seconds"] < took
    assert set(report["servers"]) == {"postgres", "kafka", "elasticsearch"}
    # One broker has one replica: that is to be considered.
    assert world.syncer("doctor", "--strict").returncode == 1
    assert "kafka.replication" in world.syncer("doctor").stdout


def test_the_page_is_narrow_and_what_is_pasted_is_whole(world: World) -> None:
    """At 80 columns nothing but a command is longer, what is well is counted, and --all names it."""
    with world.elasticsearch() as client:
        client.indices.put_settings(index=world.index_of(), settings={"index.gc_deletes": "60s"})
    seen = world.syncer("doctor", environment={"COLUMNS": "80"})
    assert seen.returncode == 1
    lines = seen.stdout.splitlines()
    assert [one for one in lines if len(one) > 80 and not one.startswith("      ")] == []
    (command,) = [one for one in lines if "gc_deletes" in one and "curl" in one]
    assert command.endswith("""-d '{"index.gc_deletes": "3600s"}'""")
    assert "postgres.fsync" not in seen.stdout
    assert "postgres.fsync" in world.syncer("doctor", "--all").stdout
    (finding,) = [
        one for one in json.loads(world.syncer("doctor", "--json").stdout)["findings"] if "gc_deletes" in one["id"]
    ]
    assert finding["severity"] == "wrong"
    assert finding["promises"] == [2]
    assert finding["mend"]["how"] == "shell"


@pytest.mark.parametrize("away", [*AWAY, None])
def test_a_server_that_is_away_keeps_no_other_from_being_looked_at(world: World, away: str | None) -> None:
    """It says which one, and goes on; all of them away take no longer than one."""
    environment = {away: AWAY[away]} if away else AWAY
    began = time.monotonic()
    seen = world.syncer("doctor", "--json", environment=environment)
    assert time.monotonic() - began < 60
    assert seen.returncode == 1
    assert "Traceback" not in seen.stderr
    findings = json.loads(seen.stdout)["findings"]
    wrong = {one["id"] for one in findings if one["id"].endswith(".reach") and one["severity"] == "wrong"}
    expected = {"SYNCER_POSTGRES_DSN": Group.POSTGRES, "SYNCER_KAFKA_BOOTSTRAP_SERVERS": Group.KAFKA}
    here = [group for group in (Group.POSTGRES, Group.KAFKA, Group.ELASTICSEARCH) if away]
    gone = expected.get(away or "", Group.ELASTICSEARCH)
    assert wrong == ({f"{gone}.reach"} if away else {"postgres.reach", "kafka.reach", "elasticsearch.reach"})
    for group in here:
        well = [one for one in findings if one["id"].startswith(group) and one["severity"] == "well"]
        well = [one for one in well if one["id"] != "postgres.replica"]  # there is none to be looked at
        assert bool(well) is (group is not gone)


@pytest.mark.parametrize("arguments", [("--nonsense",), ("blogpost",), ("--json", "now")])
def test_nonsense_is_refused(world: World, arguments: tuple[str, ...]) -> None:
    """What is no option is said, with exit code 2."""
    seen = world.syncer("doctor", *arguments)
    assert seen.returncode == 2
    assert "Traceback" not in seen.stderr


def test_the_page_of_checks_is_that_of_the_program() -> None:
    """docs/doctor.md has every check, with its claim and its reason, and no other."""
    page = (REPOSITORY / "docs" / "doctor.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z_.]+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    promises = {one.id: f" ({', '.join(map(str, one.promises))})" if one.promises else "" for one in CHECKS}
    assert rows == [(one.id, one.claim, f"{one.why}{promises[one.id]}") for one in CHECKS]
    assert len({one.id for one in CHECKS}) == len(CHECKS)
