"""The command ``syncer grants``: SQL for least-privilege Postgres roles."""

from __future__ import annotations

from typing import Annotated

import typer

from syncer.apply import grants as granting
from syncer.apply.grants import Duty
from syncer.base import log, postgres, settings
from syncer.cli.parameters import UsageError
from syncer.documents import definition

Role = list[str] | None


def _option(duty: Duty, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(f"--{duty}", metavar="ROLE", help=what)
    return option


def grants(
    *,
    migrator: Annotated[Role, _option(Duty.MIGRATOR, "Role for migrate, plan and apply.")] = None,
    relay: Annotated[Role, _option(Duty.RELAY, "Role for the daemon, or for run --only relay.")] = None,
    worker: Annotated[Role, _option(Duty.WORKER, "Role for the daemon, or for run --only workers.")] = None,
    operator: Annotated[
        Role, _option(Duty.OPERATOR, "Role for backfill, index, jobs, dead-letters, verify --repair.")
    ] = None,
    reader: Annotated[Role, _option(Duty.READER, "Read-only role for status, verify and explain.")] = None,
) -> None:
    """Print the SQL for least-privilege Postgres roles.

    Changes nothing. Review the SQL and run it as the schema's owner or a superuser:
    syncer grants --reader anna | psql shop. It covers the active documents and those in the
    config folder. Run it again after migrate, and after an apply that reads other tables.
    Options can be repeated, and one role can have several duties.

    Run it as a role that can read the table definitions, such as the migrator.
    """
    asked = {
        Duty.MIGRATOR: migrator,
        Duty.RELAY: relay,
        Duty.WORKER: worker,
        Duty.OPERATOR: operator,
        Duty.READER: reader,
    }
    roles: dict[str, list[Duty]] = {}
    for duty, names in asked.items():
        for name in names or ():
            roles.setdefault(_valid(name), []).append(duty)
    if not roles:
        raise UsageError(
            "Missing option: name at least one role, as in: syncer grants --relay syncer --worker syncer | psql shop"
        )
    loaded = settings.load_source()
    log.configure(loaded.log, is_command=True)
    folder = settings.config_folder()
    definitions = definition.load_all(folder) if any(folder.glob("documents/*")) else []
    with postgres.connect(loaded.postgres, name="grants") as connection:
        script = granting.script(connection, roles, granting.of_documents(connection, definitions))
    typer.echo(script)


def _valid(role: str) -> str:
    if not role or "\0" in role or len(role.encode()) > granting.ROLE_BYTES_MAX:
        raise UsageError(f"{role!r} is not a valid role name: a name has 1 to {granting.ROLE_BYTES_MAX} bytes.")
    return role
