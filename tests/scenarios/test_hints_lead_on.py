"""Hints are followed on real servers: what they say is possible, and the fault is gone afterwards."""

from __future__ import annotations

import json
import re
import shlex

import psycopg
import pytest

from syncer.base.postgres import AdvisoryLock
from tests.faults.harness import add_posts
from tests.support.world import World, wait_until


def problems(world: World) -> list[dict[str, str]]:
    """What `syncer status` says has to be done."""
    problems_found: list[dict[str, str]] = json.loads(world.syncer("status", "--json").stdout)["problems"]
    return problems_found


def test_what_keeps_the_lead_is_found(world: World) -> None:
    """Rule: a daemon that cannot lead is not told to restart. The query of the hint names the sessions to be ended."""
    lock = f"SELECT pg_advisory_lock_shared({AdvisoryLock.RELAY.value})"
    foreign = [psycopg.connect(world.dsn, application_name=name) for name in ("foreign-0", "foreign-1")]
    for connection in foreign:
        connection.execute(lock)
    world.daemon()
    wait_until(
        lambda: any("No daemon leads" in problem["message"] for problem in problems(world)), what="no daemon leads"
    )
    (action,) = [problem["action"] for problem in problems(world) if "No daemon leads" in problem["message"]]
    holders = world.sql(action[action.index("SELECT") :])
    assert {name for _, _, name in holders} == {"foreign-0", "foreign-1"}
    for pid, *_ in holders:
        world.sql("SELECT pg_terminate_backend(%s)", pid)
    wait_until(lambda: problems(world) == [], what="a daemon leads")
    for connection in foreign:
        connection.close()


@pytest.mark.parametrize("extra", [{}, {"is_write_index": True}, {"filter": {"term": {"title": "x"}}}], ids=str)
def test_an_index_that_somebody_adds_to_the_alias_is_taken_out(world: World, extra: dict[str, object]) -> None:
    """Rule: where `apply` refuses, it is not advised. The request of the hint is sent as it stands."""
    add_posts(world, 3)
    daemon = world.daemon()
    world.wait_until_level()
    with world.elasticsearch() as client:
        client.indices.create(index=f"foreign-{world.name}", aliases={world.alias: extra})
        try:
            (action,) = [problem["action"] for problem in problems(world) if "_aliases" in problem["action"]]
            method, path, body = re.findall(r"([A-Z]+) (/\S+) (.*)", action)[0]
            client.perform_request(
                method,
                path,
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                body=json.loads(body),
            )
            wait_until(lambda: problems(world) == [], what="all is well")
        finally:
            client.indices.delete(index=f"foreign-{world.name}")
    assert daemon.stop() == 0


@pytest.mark.parametrize("changed", [[], ["2"]], ids=["none differs", "one differs"])
def test_a_load_that_writes_nothing_is_a_success_only_if_nothing_differs(world: World, changed: list[str]) -> None:
    """Rule: if a load has nothing to write, that proves nothing. The hint replaces an index that differs."""
    add_posts(world, 3)
    world.backfill()
    with world.elasticsearch() as client:
        for id_, document in world.held().items():
            source = {**document, "title": "foreign"} if id_ in changed else document
            client.index(index=world.index_of(), id=id_, document=source, version=1 << 60, version_type="external")
    world.sql("UPDATE syncer.document SET loaded_at = NULL")
    applied = world.syncer("apply", "--yes")
    assert "3 already up to date" in applied.stdout + applied.stderr
    assert applied.returncode == bool(changed), applied.stderr
    if changed:
        assert "the index has newer versions, which differ from it" in applied.stderr
        assert "syncer index rebuild blogpost" in applied.stderr
        world.prints("index", "rebuild", "blogpost")
    assert world.differences() == []


BLOCKS = {
    "index.blocks.write": "backfill blogpost",
    "index.blocks.metadata": "plan",
    "index.blocks.read": "verify",
    "index.blocks.read_only": "index rebuild blogpost",
}


@pytest.mark.parametrize(("setting", "command"), BLOCKS.items(), ids=BLOCKS)
def test_a_block_is_named_by_its_setting(world: World, setting: str, command: str) -> None:
    """Rule: the setting that blocks is named, and not a cluster without a master; once it is false, all goes on."""
    add_posts(world, 3)
    world.backfill()
    world.daemon()  # only a running daemon resumes what is suspended
    index = world.index_of()
    with world.elasticsearch() as client:
        client.indices.put_settings(index=index, settings={setting: True})
        completed = world.syncer(*shlex.split(command))
        shown = world.syncer("status").stdout
        client.indices.put_settings(index=index, settings={setting: False})
    assert "master" not in completed.stderr + shown
    if setting == "index.blocks.read":
        assert f"Set {setting} of {index} to false" in shown
    text = completed.stdout + completed.stderr
    assert (completed.returncode, setting in text or "resumes" in text) in ((1, True), (0, False)), text
    wait_until(lambda: world.syncer(*shlex.split(command)).returncode == 0, what="it works again")
