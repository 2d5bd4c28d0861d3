"""What concerns a whole Elasticsearch, and what its user may do: on one of its own, with security."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from syncer.doctor.symptom import Severity
from syncer.sandbox import Endpoints, Sandbox
from syncer.settings import Settings
from tests.doctoring import is_well, look, mend
from tests.harness import World, made

CONSIDER, WRONG = Severity.CONSIDER, Severity.WRONG
PASSWORD = "a password of this test"  # noqa: S105 - of a user that lives as long as this module


@pytest.fixture(scope="module")
def world(endpoints: Endpoints, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world whose Elasticsearch asks who is there; who does not say may do everything, which is what tests do."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        server = Sandbox(Path(folder) / "servers").elasticsearch
        server.settings |= {
            "xpack.security.enabled": "true",
            "xpack.security.authc.anonymous.roles": "superuser",
        }
        server.start()
        try:
            secured = replace(endpoints, elasticsearch_url=server.address)
            home = tmp_path_factory.mktemp("doctor")
            with made(World(sandbox=sandbox, endpoints=secured, folder=home)) as world:
                world.set_up()
                yield world
        finally:
            server.stop()


def key(world: World, privileges: list[str]) -> SecretStr:
    """An API key with these privileges on the indices, and no other; a user would have those of nobody too."""
    indices = [{"names": [f"{world.alias}*", "syncer-state"], "privileges": privileges}]
    with world.elasticsearch() as client:
        client.security.put_user(username="owner", password=PASSWORD, roles=["superuser"])
        made_key = client.options(basic_auth=("owner", PASSWORD)).security.create_api_key(
            name="daemon",
            role_descriptors={"daemon": {"cluster": ["monitor", "manage_index_templates"], "indices": indices}},
        )
    return SecretStr(made_key.body["encoded"])


def as_daemon(world: World, privileges: list[str]) -> Settings:
    """The settings of a daemon with these privileges."""
    there = world.settings.elasticsearch.model_copy(update={"api_key": key(world, privileges)})
    return world.settings.model_copy(update={"elasticsearch": there})


def test_privileges_that_lack_are_named(world: World) -> None:
    """What the daemon needs is wrong if it lacks, and what only apply needs is to be considered."""
    id_ = "elasticsearch.privileges"
    to_read, to_apply = ["read", "view_index_metadata", "maintenance"], ["create_index", "manage"]
    assert is_well(look(world, id_, settings=as_daemon(world, [*to_read, "write", *to_apply])))
    found = look(world, id_, settings=as_daemon(world, to_read))
    assert {one.severity for one in found} == {WRONG, CONSIDER}
    assert any("lacks write on" in one.found for one in found)
    found = look(world, id_, settings=as_daemon(world, [*to_read, "write"]))
    assert {one.severity for one in found} == {CONSIDER}
    assert all("apply and rebuild need it" in one.found for one in found)


def test_a_cluster_that_takes_no_writes_is_seen_and_mended(world: World) -> None:
    """A block of the whole cluster is none of an index's."""
    id_ = "elasticsearch.cluster_blocks"
    assert is_well(look(world, id_))
    with world.elasticsearch() as client:
        client.cluster.put_settings(persistent={"cluster.blocks.read_only": True})
    (found,) = look(world, id_)
    assert found.severity is WRONG
    mend(world, found)
    assert is_well(look(world, id_))


def test_a_cluster_in_which_a_wildcard_deletes_is_seen_and_mended(world: World) -> None:
    """The default is well, and so is what the mend makes of it."""
    id_ = "elasticsearch.wildcards"
    assert is_well(look(world, id_))
    with world.elasticsearch() as client:
        client.cluster.put_settings(persistent={"action.destructive_requires_name": False})
    (found,) = look(world, id_)
    assert found.severity is CONSIDER
    mend(world, found)
    assert is_well(look(world, id_))


def test_credentials_are_named_in_a_mend_and_never_said(world: World) -> None:
    """A request that is to be pasted has the variables of the settings in it, not what is in them."""
    settings = as_daemon(world, ["all"])
    secret = settings.elasticsearch.api_key
    assert secret is not None
    with world.elasticsearch() as client:
        client.indices.put_settings(index=world.index_of(), settings={"index.gc_deletes": "1s"})
    (found,) = look(world, "elasticsearch.gc_deletes", settings=settings)
    assert found.mend is not None
    assert secret.get_secret_value() not in found.mend.text
    mend(world, found, {"SYNCER_ELASTICSEARCH_API_KEY": secret.get_secret_value()})
    assert is_well(look(world, "elasticsearch.gc_deletes", settings=settings))
