"""Dockerfile, docker-compose.yml and the examples in deploy: their settings, commands, paths and times exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from syncer.base import settings
from syncer.base.settings import Settings
from syncer.cli.app import app
from syncer.daemon import STOP_SECONDS
from tests.support.world import REPOSITORY

COMPOSE_FILE, DOCKERFILE = REPOSITORY / "docker-compose.yml", REPOSITORY / "Dockerfile"
KUBERNETES, UNIT = REPOSITORY / "deploy" / "kubernetes", REPOSITORY / "deploy" / "syncer.service"
MANIFESTS = sorted(KUBERNETES.rglob("*.yaml"))
SETTINGS = KUBERNETES / "settings" / "syncer.yaml"
COMPOSE = yaml.safe_load(COMPOSE_FILE.read_text())
OBJECTS = [
    found
    for file in MANIFESTS
    if file.name != "kustomization.yaml" and file != SETTINGS
    for found in yaml.safe_load_all(file.read_text())
]
"""Every object of the manifests."""
SECRETS = {found["metadata"]["name"]: found["stringData"] for found in OBJECTS if found["kind"] == "Secret"}
TEMPLATES = {
    found["metadata"]["name"]: found["spec"].get("jobTemplate", found)["spec"]["template"]
    for found in OBJECTS
    if found["kind"] in ("Deployment", "Job", "CronJob")
}
"""The template of each pod, by the name of what runs it."""
COMPONENT = yaml.safe_load((KUBERNETES / "kafka" / "kustomization.yaml").read_text())
KAFKA = [each["value"] for each in yaml.safe_load(COMPONENT["patches"][0]["patch"])]
"""The variables that the component adds to the daemons and to the release."""
DAEMONS = {found["metadata"]["name"]: found for found in OBJECTS if found["kind"] == "Deployment"}


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a pod."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def test_settings_and_commands_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are ones that syncer reads, each pod can load its settings and secrets, commands are syncer's."""
    known = {"SYNCER_CONFIG"}
    for section, field in Settings.model_fields.items():
        for name in field.annotation.model_fields:  # type: ignore[union-attr]
            known |= {f"SYNCER_{section}_{name}".upper(), f"SYNCER_{section}_{name}_FILE".upper()}
    for file in [COMPOSE_FILE, *MANIFESTS, UNIT, DOCKERFILE]:
        assert set(re.findall(r"\bSYNCER_[A-Z_]+\b", file.read_text())) - known == set(), file
    monkeypatch.setenv("SYNCER_CONFIG", str(tmp_path))
    (tmp_path / "syncer.yaml").write_text(SETTINGS.read_text())
    for template in TEMPLATES.values():
        (volume,) = [mount["secret"] for mount in template["spec"]["volumes"] if mount["name"] == "secrets"]
        secret = SECRETS[volume["secretName"]]
        for container in containers(template):
            for env in container["env"] + (KAFKA if secret.get("kafka-properties") else []):
                file = tmp_path / Path(env["value"]).name
                if env["name"].endswith("_FILE"):
                    file.write_text(secret[file.name])
                    monkeypatch.setenv(env["name"], str(file))
        loaded = settings.load()
        assert loaded.elasticsearch.api_key is not None
        assert loaded.kafka.properties.get("sasl.password") == ("change-me" if "kafka-properties" in secret else None)
        monkeypatch.delenv("SYNCER_KAFKA_PROPERTIES_FILE", raising=False)
    lines = [service["command"] for service in COMPOSE["services"].values() if "command" in service]
    lines += [container["args"] for template in TEMPLATES.values() for container in containers(template)]
    lines += [line.split() for line in re.findall(r"^ExecStart=\S+/bin/syncer (.*)$", UNIT.read_text(), re.MULTILINE)]
    assert len(lines) > 6
    command: Any = typer.main.get_command(app)
    context = command.make_context("syncer", [], resilient_parsing=True)
    for line in lines:
        _, subcommand, arguments = command.resolve_command(context, line)
        subcommand.make_context(subcommand.name, arguments, parent=context)


def test_migrations_are_applied_before_daemons() -> None:
    """A daemon must not start beside the migration, so no folder has both; all of them run one image."""
    for folder, kind in (("release", "Job"), ("daemons", "Deployment")):
        files = {file.name for file in (KUBERNETES / folder).glob("*.yaml")} - {"kustomization.yaml"}
        kustomization = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
        assert set(kustomization["resources"]) == {"../settings", *files}
        kinds = {
            manifest["kind"]
            for file in files
            for manifest in yaml.safe_load_all((KUBERNETES / folder / file).read_text())
        }
        assert kinds & {"Job", "Deployment"} == {kind}
    assert {container["image"] for template in TEMPLATES.values() for container in containers(template)} == {"syncer"}


def test_every_part_waits_for_the_daemon_to_end() -> None:
    """Each waits longer after SIGTERM than the daemon may take, before it kills the daemon."""
    seconds = [float(COMPOSE["services"]["syncer"]["stop_grace_period"].removesuffix("s"))]
    seconds += [float(number) for number in re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)]
    seconds += [
        deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for deployment in DAEMONS.values()
    ]
    assert len(seconds) == 3
    assert min(seconds) > STOP_SECONDS + 10


def test_the_unit_loads_the_credentials_that_it_reads() -> None:
    """Also those of its commented lines."""
    text = UNIT.read_text()
    loaded = set(re.findall(r"^(?:# )?LoadCredential=([\w-]+):", text, re.MULTILINE))
    assert loaded == set(re.findall(r"_FILE=%d/([\w-]+)$", text, re.MULTILINE))
