"""`syncer doctor` as a person and a script use it."""

from __future__ import annotations

import json
import time

import pytest

from syncer.monitoring.doctor import CHECKS
from tests.support.world import REPOSITORY, World

SERVERS = ("postgres", "kafka", "elasticsearch")
AWAY = {
    "postgres": {"SYNCER_POSTGRES_DSN": "postgresql://postgres@127.0.0.1:9/nobody"},
    "kafka": {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"},
    "elasticsearch": {"SYNCER_ELASTICSEARCH_URL": "http://127.0.0.1:9"},
}


def test_from_an_empty_database_each_fix_leads_on_until_nothing_is_wrong(empty_world: World) -> None:
    """The doctor asks for `migrate`, then for `apply`, and then nothing is wrong."""
    world = empty_world
    world.sql((REPOSITORY / "syncer" / "demo" / "blog.sql").read_text())
    for command in (["migrate"], ["apply", "--yes"]):
        seen = world.syncer("doctor")
        assert seen.returncode == 1, (seen.stdout, seen.stderr)
        assert f"      syncer {command[0]}\n" in seen.stdout
        assert world.syncer(*command).returncode == 0
    seen = world.syncer("doctor", "--json")
    report = json.loads(seen.stdout)
    assert seen.returncode == 0, report
    assert (report["is_well"], report["wrong"], report["unseen"]) == (True, 0, 0)
    assert {one["id"] for one in report["findings"]} == {one.id for one in CHECKS}
    # One broker has one replica, which is to be considered.
    assert world.syncer("doctor", "--strict").returncode == 1
    assert "kafka.replication" in world.syncer("doctor").stdout


def test_the_output_is_narrow_and_a_command_is_unbroken(shared_world: World) -> None:
    """At 80 columns only commands are longer."""
    with shared_world.elasticsearch() as client:
        client.indices.put_settings(index=shared_world.index_of(), settings={"index.gc_deletes": "60s"})
    seen = shared_world.syncer("doctor", environment={"COLUMNS": "80"})
    assert seen.returncode == 1
    lines = seen.stdout.splitlines()
    assert [one for one in lines if len(one) > 80 and not one.startswith("      ")] == []
    (command,) = [one for one in lines if "gc_deletes" in one and "curl" in one]
    assert command.endswith("""-d '{"index.gc_deletes": "3600s"}'""")
    findings = json.loads(shared_world.syncer("doctor", "--json").stdout)["findings"]
    (finding,) = [one for one in findings if one["id"] == "elasticsearch.gc_deletes"]
    assert (finding["severity"], finding["how"]) == ("wrong", "shell")
    with shared_world.elasticsearch() as client:
        client.indices.put_settings(index=shared_world.index_of(), settings={"index.gc_deletes": "3600s"})


@pytest.mark.parametrize("away", [*AWAY, None])
def test_a_server_that_is_down_does_not_prevent_the_checks_of_the_others(shared_world: World, away: str | None) -> None:
    """It is named; several that are down take no longer than one."""
    down = [away] if away else list(SERVERS)
    began = time.monotonic()
    seen = shared_world.syncer("doctor", "--json", environment={k: v for one in down for k, v in AWAY[one].items()})
    assert time.monotonic() - began < 60
    assert seen.returncode == 1
    assert "Traceback" not in seen.stderr
    findings = json.loads(seen.stdout)["findings"]
    wrong = {one["id"] for one in findings if one["id"].endswith(".reach") and one["severity"] == "wrong"}
    assert wrong == {f"{one}.reach" for one in down}
    well = {one["id"].partition(".")[0] for one in findings if one["severity"] == "well"}
    assert well == set(SERVERS) - set(down)


def test_nonsense_is_refused(shared_world: World) -> None:
    """An unknown option ends with exit code 2."""
    for arguments in (("--nonsense",), ("blogpost",), ("--json", "now")):
        seen = shared_world.syncer("doctor", *arguments)
        assert seen.returncode == 2
        assert "Traceback" not in seen.stderr


def test_no_check_has_the_name_of_another() -> None:
    """A name stands for one check."""
    assert len({one.id for one in CHECKS}) == len(CHECKS)
