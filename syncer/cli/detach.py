"""The command ``syncer detach``: stop capturing changes, or remove everything that syncer has created."""

from __future__ import annotations

from typing import Annotated

from syncer.apply import detach as apply_detach
from syncer.base.errors import ConfigError
from syncer.cli.context import Yes, confirm, flag, open_postgres, open_servers
from syncer.cli.render import say
from syncer.documents import registry
from syncer.kafka import topic
from syncer.monitoring import daemons


def detach(
    *,
    uninstall: Annotated[
        bool, flag("--uninstall", text="Remove triggers, indices, the topic and the schema syncer instead.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Stop capturing changes, or uninstall syncer.

    Disables the triggers of every table, empties the outbox and suspends every document. Your
    writes continue without syncer, and searches keep the last state. To go on, run
    `syncer apply`: it enables the triggers and writes every document once. Needs the role that
    runs apply, and no Elasticsearch. With --uninstall, removes everything that syncer has
    created; your tables and rows stay as they are.
    """
    if uninstall:
        _uninstall(yes=yes)
        return
    with open_postgres("detach") as connection:
        confirm("Stop capturing changes? Every document stays as it is until `syncer apply`.", yes=yes)
        apply_detach.stop_capturing(connection, report=say)


def _uninstall(*, yes: bool) -> None:
    with open_servers("detach") as servers:
        if running := daemons.reporting(servers.connection):
            raise ConfigError(
                f"A daemon runs: {', '.join(running)}",
                hint="Nothing was removed. Stop every daemon, and run this again a few seconds later.",
            )
        kafka = servers.settings.kafka
        for document in registry.documents(servers.connection):
            say(f"will be removed: index {document.index_name}, searched as {document.index}")
        say("will be removed: the triggers of every table, and the schema syncer with the outbox")
        if kafka.is_used:
            say(f"will be removed: topic {kafka.topic}")
        confirm("Remove all of this? Your tables and rows stay as they are.", yes=yes)
        apply_detach.uninstall(servers.connection, servers.index, servers.indices, report=say)
        if kafka.is_used and topic.delete(kafka):
            say(f"topic {kafka.topic} is deleted")
    say("Left for you, if you created them: roles, API keys, ACLs, the service, and the index syncer-locks.")
