"""The daemon needs no more than the page on security grants it."""

from __future__ import annotations

import re

from tests.harness import REPOSITORY, World


def grants() -> str:
    """The GRANTs that docs/security.md gives for one role."""
    found = re.search(
        r"```sql\n(GRANT USAGE ON SCHEMA syncer.*?)```", (REPOSITORY / "docs" / "security.md").read_text(), re.DOTALL
    )
    assert found is not None
    return found[1]


def test_the_daemon_runs_with_the_grants_of_the_page(world: World) -> None:
    """Relay, workers, job worker and commands do all they do as a role that owns nothing."""
    role = f"worker_{world.name}"
    world.sql(f"CREATE ROLE {role} LOGIN")
    world.sql(grants().replace(" TO worker;", f" TO {role};"))
    as_role = {"SYNCER_POSTGRES_DSN": world.dsn.replace("postgres@", f"{role}@")}
    try:
        daemon = world.daemon(environment={**as_role, "SYNCER_RELAY_TRIM_SECONDS": "0.1", "SYNCER_LOG_LEVEL": "debug"})
        world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
        world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'title', 'body')")
        world.wait_until_level()
        daemon.wait_for("relay.outbox_trimmed")
        for command in (
            ("verify", "--repair"),
            ("backfill", "blogpost"),
            ("index", "rebuild", "blogpost"),
            ("index", "rollback", "blogpost"),
            ("index", "drop-previous", "blogpost", "--yes"),
            ("jobs", "list"),
            ("explain", "blogpost", "2"),
            ("status",),
        ):
            done = world.syncer(*command, environment=as_role)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert daemon.stop() == 0
    finally:
        world.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
