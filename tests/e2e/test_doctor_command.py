"""`syncer doctor` as a person and a script use it."""

from __future__ import annotations

import json
import time

from syncer.monitoring.doctor import CHECKS
from tests.support.world import REPOSITORY, World

AWAY = {
    "postgres": {"SYNCER_POSTGRES_DSN": "postgresql://postgres@127.0.0.1:9/absent"},
    "kafka": {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"},
    "elasticsearch": {"SYNCER_ELASTICSEARCH_URL": "http://127.0.0.1:9"},
}


def test_from_an_empty_database_each_fix_leads_on_until_nothing_is_wrong(empty_world: World) -> None:
    """The doctor asks for `migrate`, then for `apply`, and then nothing is wrong; a command can be pasted unbroken."""
    world = empty_world
    world.sql((REPOSITORY / "syncer" / "demo" / "blog.sql").read_text())
    for command, says in (["migrate"], "      Run: syncer migrate\n"), (["apply", "--yes"], "      syncer apply\n"):
        seen = world.syncer("doctor")
        assert seen.returncode == 1, (seen.stdout, seen.stderr)
        assert says in seen.stdout
        assert world.syncer(*command).returncode == 0
    seen = world.syncer("doctor", "--json")
    report = json.loads(seen.stdout)
    assert seen.returncode == 0, report
    assert (report["is_well"], report["wrong"], report["unseen"]) == (True, 0, 0)
    assert {finding["id"] for finding in report["findings"]} == {check.id for check in CHECKS}
    assert "The topic has one replica" in world.syncer("doctor").stdout
    with world.elasticsearch() as client:
        client.indices.put_settings(index=world.index_of(), settings={"index.gc_deletes": "60s"})
    seen = world.syncer("doctor", environment={"COLUMNS": "80"})
    assert seen.returncode == 1
    assert f"""      PUT /{world.index_of()}/_settings\n      {{"index.gc_deletes": "3600s"}}\n""" in seen.stdout


def test_a_server_that_is_down_does_not_prevent_the_checks_of_the_others(shared_world: World) -> None:
    """It is named; several that are down take no longer than one."""
    for down in (["postgres"], ["kafka"], ["elasticsearch"], list(AWAY)):
        began = time.monotonic()
        away = {name: value for server in down for name, value in AWAY[server].items()}
        seen = shared_world.syncer("doctor", "--json", environment=away)
        assert time.monotonic() - began < 60
        assert (seen.returncode, "Traceback" in seen.stderr) == (1, False)
        findings = json.loads(seen.stdout)["findings"]
        wrong = {each["id"] for each in findings if each["id"].endswith(".reach") and each["severity"] == "wrong"}
        assert wrong == {f"{server}.reach" for server in down}
        well = {finding["id"].partition(".")[0] for finding in findings if finding["severity"] == "well"}
        assert well == AWAY.keys() - set(down)
