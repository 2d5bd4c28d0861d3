"""`syncer events` on a real deployment: what happened is there, in order, and noting it costs the work nothing."""

from __future__ import annotations

import json
from typing import Any

from syncer.base import timeline
from syncer.base.timeline import KEPT_MAX, Timeline
from tests.support.world import World, wait_until

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long');
"""


def told(world: World, *options: str) -> list[dict[str, Any]]:
    """What `syncer events --json` prints."""
    done = world.syncer("events", "--json", *options)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def wait_for(world: World, event: str, *parts: str) -> dict[str, Any]:
    """The last event of that name whose message has these parts, once it is told."""
    found: list[dict[str, Any]] = []

    def is_told() -> bool:
        seen = told(world)
        found[:] = [one for one in seen if one["event"] == event and all(part in one["message"] for part in parts)]
        return bool(found)

    wait_until(is_told, what=f"{event} is told: {parts}", detail=lambda: json.dumps(told(world), indent=1))
    return found[-1]


def test_what_happened_is_told_in_order(world: World) -> None:
    """A leader, a suspension and its end, an apply and its load, a verify; which process noted it, and when."""
    world.sql(BLOG)
    # The timeline does not depend on what is logged.
    daemon = world.daemon(environment={"SYNCER_LOG_LEVELS": '{"relay": "error"}'})
    wait_for(world, "daemon.joined", "A daemon started")
    led = wait_for(world, "relay.led")
    assert led["process"] == daemon.process.pid
    assert led["level"] == "info"
    world.wait_until_level()
    world.sql("ALTER TABLE posts RENAME title TO headline")
    wait_for(world, "document.suspended", "blogpost was suspended")
    world.sql("ALTER TABLE posts RENAME headline TO title")
    assert world.syncer("apply", "--yes").returncode == 0
    wait_for(world, "apply.finished", "Resumed blogpost.")
    wait_for(world, "job.finished", "(initial_load) wrote every document of blogpost: 1 document")
    assert world.syncer("verify").returncode == 0
    wait_for(world, "verify.finished", f"Verified {world.index_of()}: 1 document, 0 drifted, 0 repaired.")
    seen = told(world)
    assert [one["at"] for one in seen] == sorted(one["at"] for one in seen)
    assert told(world, "--since", "0s") == []
    names = [one["event"] for one in seen]
    order = ["relay.led", "document.suspended", "apply.finished", "verify.finished"]
    assert sorted(order, key=names.index) == order
    lines = world.syncer("events", "--since", "30m").stdout.splitlines()
    assert lines[0].split()[:2] == ["at", "(UTC)"]
    assert len(lines) == 1 + len(seen)
    assert seen[-1]["message"] in lines[-1]


def test_the_timeline_delays_nothing(world: World) -> None:
    """While its table is locked, changes are followed; what happened meanwhile is written afterwards."""
    daemon = world.daemon()
    wait_for(world, "relay.led")
    with world.application() as locking:
        locking.execute("LOCK TABLE syncer.event")
        world.sql(BLOG)
        world.wait_until_level()
        world.sql("ALTER TABLE posts RENAME title TO headline")
        daemon.wait_for("document.suspended")
        daemon.wait_for("timeline.write_failed")
        assert [one["event"] for one in daemon.events() if one["event"].startswith("component.")] == []
    wait_for(world, "document.suspended", "blogpost was suspended")
    assert daemon.stop() == 0
    wait_for(world, "daemon.left", "A daemon stopped")
    world.sql(
        "INSERT INTO syncer.daemon "
        "SELECT gen_random_uuid(), 'gone', 7, '1', now(), now() - interval '2 min', '{}', true, "
        "0, '[]'"
    )
    assert world.daemon().stop() == 0
    wait_for(world, "daemon.disappeared", "The daemon gone, process 7, disappeared")


def test_a_role_without_the_privilege_verifies_all_the_same(world: World) -> None:
    """The command says that the timeline lacks it, and nothing else is different."""
    world.sql(BLOG)
    world.backfill()
    world.sql("TRUNCATE syncer.outbox")  # nothing is in flight
    world.sql(f'CREATE ROLE "{world.name}" LOGIN; GRANT USAGE ON SCHEMA syncer TO "{world.name}"')
    try:
        world.sql(f'GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA syncer TO "{world.name}"')
        world.sql(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{world.name}"')
        world.sql(f'GRANT SELECT ON ALL SEQUENCES IN SCHEMA syncer TO "{world.name}"')
        world.sql(f'REVOKE INSERT ON syncer.event FROM "{world.name}"')
        role = {"SYNCER_POSTGRES_DSN": world.dsn.replace("postgres@", f"{world.name}@")}
        done = world.syncer("verify", environment=role)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "timeline.write_failed" in done.stderr
    finally:
        world.sql(f'DROP OWNED BY "{world.name}" CASCADE; DROP ROLE "{world.name}"')


def test_the_table_is_bounded(shared_world: World) -> None:
    """Events older than a week go, and the oldest beyond so many; a command removes none."""
    made = "INSERT INTO syncer.event (at, event, level, message, host, process) "
    shared_world.sql(made + "SELECT now() - interval '8 days', 'e', 'info', 'old', 'h', 1 FROM generate_series(1, 10)")
    shared_world.sql(
        made + "SELECT now(), 'e', 'info', 'm', 'h', 1 FROM generate_series(1, %s)",
        KEPT_MAX + 50,
    )
    noted = Timeline()
    noted.note("relay.led", "info", "This daemon's relay became the leader.")
    with shared_world.connect() as connection:
        noted.write(connection)
        assert shared_world.sql("SELECT count(*) FROM syncer.event WHERE message = 'old'") == [(10,)]
        noted.write(connection, prunes=True)
        assert shared_world.sql("SELECT count(*) FROM syncer.event WHERE message = 'old'") == [(0,)]
        assert shared_world.sql("SELECT count(*) FROM syncer.event") == [(KEPT_MAX,)]
        latest = timeline.read(connection, seconds=60, limit=3)
    assert [one.event for one in latest] == ["e", "e", "relay.led"]


def test_nonsense_is_refused(shared_world: World) -> None:
    """It is a usage error."""
    for since in ("", "5", "-5m", "1y", "yesterday"):
        said = shared_world.syncer("events", "--since", since)
        assert said.returncode == 2, since
        assert "Traceback" not in said.stderr
