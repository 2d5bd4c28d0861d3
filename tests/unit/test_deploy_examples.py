"""Dockerfile, docker-compose.yml and the examples in deploy: their settings, commands, paths and times exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement

from syncer.base import settings
from syncer.base.settings import Settings
from syncer.cli.app import app
from syncer.daemon import STOP_SECONDS
from tests.support.world import REPOSITORY

COMPOSE_FILE, DOCKERFILE = REPOSITORY / "docker-compose.yml", REPOSITORY / "Dockerfile"
KUBERNETES, UNIT = REPOSITORY / "deploy" / "kubernetes", REPOSITORY / "deploy" / "syncer.service"
HELM, IMAGE = REPOSITORY / "deploy" / "helm" / "syncer", "registry.example.com/shop-syncer"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
MANIFESTS = sorted(KUBERNETES.rglob("*.yaml"))
SETTINGS = KUBERNETES / "settings" / "syncer.yaml"
COMPOSE = yaml.safe_load(COMPOSE_FILE.read_text())
OBJECTS = [
    manifest
    for file in MANIFESTS
    if file.name != "kustomization.yaml" and file != SETTINGS
    for manifest in yaml.safe_load_all(file.read_text())
]
"""Every object of the manifests."""
SECRETS = {manifest["metadata"]["name"]: manifest["stringData"] for manifest in OBJECTS if manifest["kind"] == "Secret"}
TEMPLATES = {
    manifest["metadata"]["name"]: manifest["spec"].get("jobTemplate", manifest)["spec"]["template"]
    for manifest in OBJECTS
    if manifest["kind"] in ("Deployment", "Job", "CronJob")
}
"""The template of each pod, by the name of what runs it."""
COMPONENT = yaml.safe_load((KUBERNETES / "kafka" / "kustomization.yaml").read_text())
KAFKA = [variable["value"] for variable in yaml.safe_load(COMPONENT["patches"][0]["patch"])]
"""The variables that the component adds to the daemons and to the release."""
DAEMONS = {manifest["metadata"]["name"]: manifest for manifest in OBJECTS if manifest["kind"] == "Deployment"}


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a pod."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def test_settings_and_commands_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are ones that syncer reads, each pod can load its settings and secrets, commands are syncer's."""
    variables = {"SYNCER_CONFIG"}
    for section, field in Settings.model_fields.items():
        for name in field.annotation.model_fields:  # type: ignore[union-attr]
            variables |= {f"SYNCER_{section}_{name}".upper(), f"SYNCER_{section}_{name}_FILE".upper()}
    for file in [COMPOSE_FILE, *MANIFESTS, UNIT, DOCKERFILE]:
        assert set(re.findall(r"\bSYNCER_[A-Z_]+\b", file.read_text())) - variables == set(), file
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


def test_compose_can_give_each_service_its_secrets() -> None:
    """Docker Compose starts no service that is read-only and has a secret that is no file (tried: 2.40.3)."""
    secrets = COMPOSE.get("secrets", {})
    for name, service in COMPOSE["services"].items():
        needed = service.get("secrets", []) if service.get("read_only") else []
        assert [secret for secret in needed if "file" not in secrets[secret]] == [], name


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


def test_what_is_released_is_pinned() -> None:
    """Actions by commit, images by digest; the image installs by hash, within what pyproject.toml allows."""
    workflows = [file.read_text() for file in (REPOSITORY / ".github" / "workflows").iterdir()]
    actions = re.findall(r"uses: (\S+)", "\n".join(workflows))
    assert [action for action in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert [base for base in bases if not re.fullmatch(r"python:3\.13-slim@sha256:[0-9a-f]{64}", base)] == []
    for file, needed in (("requirements.txt", PROJECT["dependencies"]), ("build.txt", ["build", "hatchling>=1.26"])):
        text = (REPOSITORY / "deploy" / "image" / file).read_text()
        locked = dict(re.findall(r"^([\w.-]+)(?:\[\w+\])?==([\w.]+)[^\\\n]*\\\n    --hash=sha256:", text, re.MULTILINE))
        for requirement in map(Requirement, needed):
            assert locked[requirement.name] in requirement.specifier, requirement
        assert len(re.findall(r"^\S+==", text, re.MULTILINE)) == len(locked)


def test_one_version_is_named_everywhere() -> None:
    """By the chart, by the examples, and by the tag, which the workflow compares."""
    charts = yaml.safe_load((HELM / "Chart.yaml").read_text())
    tags = [
        image["newTag"]
        for folder in ("release", "daemons")
        for image in yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())["images"]
    ]
    assert {charts["version"], charts["appVersion"], *tags} == {PROJECT["version"]}
    assert 'test "v$version" = "$GITHUB_REF_NAME"' in (REPOSITORY / ".github/workflows/release.yml").read_text()


def test_the_workflows_are_valid() -> None:
    """As actionlint reads them."""
    actionlint = shutil.which("actionlint") or pytest.skip("no actionlint on this machine: a Go module")
    files = sorted((REPOSITORY / ".github" / "workflows").iterdir())
    ended = subprocess.run([actionlint, "-shellcheck=", *files], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("kafka", ["", "kafka-bootstrap:9093"])
def test_the_chart_makes_the_objects_of_the_manifests(kafka: str) -> None:
    """With the same names, but for the settings, of which Helm's job has a copy, and for Helm's annotations."""
    helm = shutil.which("helm") or pytest.skip("no helm on this machine: a Go module")
    command = [helm, "template", "syncer", str(HELM), "--set", f"kafka={kafka}"]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    objects = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in yaml.safe_load_all(rendered)
        if manifest
    }
    copied = objects.pop(("ConfigMap", "syncer-release-settings"))
    assert yaml.safe_load(copied["data"]["syncer.yaml"]) == yaml.safe_load(SETTINGS.read_text())
    assert objects.pop(("ConfigMap", "syncer-settings"))["data"] == copied["data"]
    expected = {
        (manifest["kind"], manifest["metadata"]["name"]): json.loads(
            json.dumps(manifest).replace('"image": "syncer"', f'"image": "{IMAGE}:{PROJECT["version"]}"')
        )
        for manifest in OBJECTS
        if manifest["kind"] != "Secret"
    }
    for kind, name in (("Deployment", "syncer"), ("Job", "syncer-release")):
        expected[kind, name]["spec"]["template"]["spec"]["containers"][-1]["env"] += KAFKA if kafka else []
        objects[kind, name]["metadata"].pop("annotations", None)
        objects[kind, name]["spec"]["template"]["metadata"].pop("annotations", None)
    volumes = objects["Job", "syncer-release"]["spec"]["template"]["spec"]["volumes"]
    volumes[0]["configMap"]["name"] = volumes[0]["configMap"]["name"].replace("release-", "")
    assert objects == expected
