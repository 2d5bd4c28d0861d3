"""The command ``syncer grants``: SQL that gives roles of Postgres what their duties need, and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

from syncer import definition, grants as granting, postgres, settings, telemetry
from syncer.errors import ConfigError
from syncer.grants import Duty

Role = list[str] | None


def _option(duty: Duty, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(f"--{duty}", metavar="ROLE", help=what)
    return option


def grants(
    *,
    migrator: Annotated[Role, _option(Duty.MIGRATOR, "Who runs migrate, plan and apply.")] = None,
    relay: Annotated[Role, _option(Duty.RELAY, "Who runs the daemon, or run --only relay.")] = None,
    worker: Annotated[Role, _option(Duty.WORKER, "Who runs the daemon, or run --only workers.")] = None,
    operator: Annotated[
        Role, _option(Duty.OPERATOR, "Who runs backfill, jobs, dead-letters and verify --repair.")
    ] = None,
    reader: Annotated[Role, _option(Duty.READER, "Who runs status, verify and explain, and changes nothing.")] = None,
) -> None:
    """Print the SQL that gives roles of Postgres what they need, for this database and its documents.

    Nothing is changed: read it, and run it as the owner of the schema or as a
    superuser: syncer grants --reader anna | psql shop. What is printed is for the
    documents in force and for those of the config folder. Run it again after migrate,
    and after an apply that reads other tables. Each option can be given several times,
    and several can name one role.

    It runs as a role that may read the tables' definitions, such as the migrator.
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
        raise ConfigError(
            "No role is named", hint="As in: syncer grants --relay syncer --worker syncer --reader anna | psql shop"
        )
    loaded = settings.load_source()
    telemetry.configure(loaded.log, is_command=True)
    folder = settings.config_folder()
    definitions = definition.load_all(folder) if any(folder.glob("documents/*")) else []
    with postgres.connect(loaded.postgres, name="grants") as connection:
        script = granting.script(connection, roles, granting.of_documents(connection, definitions))
    typer.echo(script)


def _valid(role: str) -> str:
    if not role or "\0" in role or len(role.encode()) > granting.ROLE_BYTES_MAX:
        raise ConfigError(
            f"{role!r} is no name of a role: it has 1 to {granting.ROLE_BYTES_MAX} bytes", hint="Is an option missing?"
        )
    return role
