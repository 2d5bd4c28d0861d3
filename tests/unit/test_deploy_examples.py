"""Dockerfile, docker-compose.yml and the examples in deploy: their settings, commands, paths and times exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import BaseModel
from yamllint import linter
from yamllint.config import YamlLintConfig

from syncer.base import settings
from syncer.base.settings import Settings
from syncer.cli.app import app
from syncer.daemon import STOP_SECONDS
from tests.support.world import REPOSITORY

COMPOSE = REPOSITORY / "docker-compose.yml"
DOCKERFILE = REPOSITORY / "Dockerfile"
KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
MANIFESTS = sorted(KUBERNETES.rglob("*.yaml"))
UNIT = REPOSITORY / "deploy" / "syncer.service"
PROJECT = [
    REPOSITORY / "mkdocs.yml",
    REPOSITORY / ".pre-commit-config.yaml",
    *sorted((REPOSITORY / ".github").rglob("*.yml")),
]
GENERATED = {"syncer-settings": KUBERNETES / "settings" / "syncer.yaml"}
"""What Kustomize makes of files."""
LINT = YamlLintConfig("""
extends: default
rules:
  line-length: {max: 160}
  braces: {max-spaces-inside: 0}
  document-start: disable
  octal-values: disable
  comments: {min-spaces-from-content: 1}
""")


def variables(text: str) -> set[str]:
    """The settings that a text sets by their variables."""
    return set(re.findall(r"\bSYNCER_[A-Z_]+\b", text))


def known_variables() -> set[str]:
    """Every variable that there is; what the status page reads comes with it."""
    known = {"SYNCER_CONFIG"}
    for section, info in Settings.model_fields.items():
        kind = info.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, BaseModel)
        files = {f"{name}_file" for name in kind.model_fields}
        known |= {f"SYNCER_{section}_{name}".upper() for name in {*kind.model_fields, *files}}
    return known


def manifests() -> list[dict[str, Any]]:
    """Every object of the manifests, except Kustomize's own files."""
    files = [one for one in MANIFESTS if one.name != "kustomization.yaml" and one not in GENERATED.values()]
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each pod, and what it is called."""
    for one in manifests():
        if one["kind"] in ("Deployment", "Job"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        elif one["kind"] == "CronJob":
            yield one["metadata"]["name"], one["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def secrets() -> dict[str, dict[str, str]]:
    """The contents of each Secret."""
    return {one["metadata"]["name"]: one["stringData"] for one in manifests() if one["kind"] == "Secret"}


def require_command(words: list[str]) -> None:
    """Fail if syncer would not take these words."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("syncer", [], resilient_parsing=True)
    _, one, rest = command.resolve_command(context, words)
    one.make_context(one.name, rest, parent=context)


@pytest.mark.parametrize(
    "file", [COMPOSE, *MANIFESTS, *PROJECT, REPOSITORY / "config" / "syncer.yaml"], ids=lambda one: one.name
)
def test_yaml_is_well_written(file: Path) -> None:
    """Yamllint has nothing to say."""
    assert [str(one) for one in linter.run(file.read_text(), LINT)] == []


@pytest.mark.parametrize("file", [COMPOSE, *MANIFESTS, UNIT, DOCKERFILE], ids=lambda one: one.name)
def test_settings_that_are_set_exist(file: Path) -> None:
    """Each variable is one that syncer reads; those of the status page are known where there is one."""
    unknown = variables(file.read_text()) - known_variables()
    if "web" not in Settings.model_fields:
        unknown = {one for one in unknown if not one.startswith("SYNCER_WEB_")}
    assert unknown == set()


def test_the_settings_of_the_manifests_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pod can load the settings, with its own secrets."""
    (tmp_path / "syncer.yaml").write_text(GENERATED["syncer-settings"].read_text())
    monkeypatch.setenv("SYNCER_CONFIG", str(tmp_path))
    for _, pod in pods():
        (volume,) = [one["secret"]["secretName"] for one in pod["volumes"] if one["name"] == "secrets"]
        for one in pod["containers"][0]["env"]:
            if one["name"].endswith("_FILE"):
                file = tmp_path / Path(one["value"]).name
                file.write_text(secrets()[volume][file.name])
                monkeypatch.setenv(one["name"], str(file))
        loaded = settings.load()
        assert loaded.elasticsearch.api_key is not None
        assert loaded.kafka.sasl_password is not None


def test_images_are_pinned() -> None:
    """No image is whatever is the latest on the day; every pod has the image that its kustomization names."""
    images = re.findall(r"image: (\S+)", COMPOSE.read_text())
    images += re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    for folder in ("release", "daemons"):
        (image,) = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())["images"]
        images.append(f"{image['newName']}:{image['newTag']}")
        assert image["name"] == "syncer"
    assert len(images) > 5
    for one in images:
        name, _, tag = one.rpartition(":")
        assert name, one
        assert re.search(r"\d", tag), one
    for _, pod in pods():
        assert {one["image"] for one in [*pod.get("initContainers", []), *pod["containers"]]} == {"syncer"}


def test_migrations_and_daemons_are_applied_apart() -> None:
    """A daemon must not start beside the migration: no folder has both. Each lists all of its files."""
    for folder in ("release", "daemons"):
        listed = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())["resources"]
        assert {"../settings", *(one.name for one in (KUBERNETES / folder).glob("*.yaml"))} == {
            *listed,
            "kustomization.yaml",
        }
        kinds = {
            one["kind"] for file in listed[1:] for one in yaml.safe_load_all((KUBERNETES / folder / file).read_text())
        }
        assert ("Job" in kinds) is (folder == "release")
        assert ("Deployment" in kinds) is (folder == "daemons")


@pytest.mark.parametrize("folder", ["release", "daemons"])
def test_kustomize_builds_the_manifests(folder: str) -> None:
    """kubectl, if it is on this machine, builds each folder, and replaces the names of images and settings."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on this machine")
    done = subprocess.run([kubectl, "kustomize", str(KUBERNETES / folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "image: syncer\n" not in done.stdout
    assert "name: syncer-settings\n" not in done.stdout


def test_commands_are_syncer_s() -> None:
    """What containers and the unit run is taken by the program."""
    compose = yaml.safe_load(COMPOSE.read_text())
    said = [one["command"] for one in compose["services"].values() if "command" in one]
    for _, pod in pods():
        said += [one["args"] for one in [*pod.get("initContainers", []), *pod["containers"]]]
    said += [one.split() for one in re.findall(r"^ExecStart=\S+/bin/syncer (.*)$", UNIT.read_text(), re.MULTILINE)]
    assert len(said) > 6
    for words in said:
        require_command(words)


def test_every_part_waits_for_the_daemon_to_end() -> None:
    """Each waits longer after SIGTERM than the daemon may take, before it kills the daemon."""
    compose = yaml.safe_load(COMPOSE.read_text())
    seconds = [float(compose["services"]["syncer"]["stop_grace_period"].removesuffix("s"))]
    seconds += [float(one) for one in re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)]
    seconds += [
        one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for one in manifests()
        if one["kind"] == "Deployment"
    ]
    assert len(seconds) == 4
    assert min(seconds) > STOP_SECONDS + 10


def test_what_a_pod_refers_to_is_there() -> None:
    """Volumes that are mounted, secrets with the keys that are read, selectors, and the port of the probes."""
    daemons = {one["metadata"]["name"] for one in manifests() if one["kind"] == "Deployment"}
    for name, pod in pods():
        volumes = {one["name"]: one for one in pod["volumes"]}
        secret = secrets()[volumes["secrets"]["secret"]["secretName"]]
        maps = {one["configMap"]["name"] for one in volumes.values() if "configMap" in one}
        assert maps <= GENERATED.keys() | {"syncer-ca"}
        for one in [*pod.get("initContainers", []), *pod["containers"]]:
            assert {mount["name"] for mount in one["volumeMounts"]} <= volumes.keys()
            files = {Path(env["value"]).name for env in one["env"] if env["name"].endswith("_FILE")}
            assert files == secret.keys()
            assert one["securityContext"]["readOnlyRootFilesystem"]
            if name in daemons:
                assert one["ports"] == [{"name": "http", "containerPort": 8765}]
                probes = [one[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
                assert probes == [{"path": "/healthz", "port": "http"}, {"path": "/readyz", "port": "http"}]
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in manifests()
        if one["kind"] == "Deployment"
    }
    for one in manifests():
        if one["kind"] in ("Deployment", "PodDisruptionBudget"):
            assert one["spec"]["selector"]["matchLabels"] == labels[one["metadata"]["name"]]
        elif one["kind"] == "Service":
            assert one["spec"]["selector"] in labels.values()
        elif one["kind"] == "PodMonitor":
            (expression,) = one["spec"]["selector"]["matchExpressions"]
            assert {f"syncer-{value}" for value in expression["values"]} == daemons


def test_the_unit_is_one(tmp_path: Path) -> None:
    """It loads the credentials that it reads; systemd, if it is here, accepts it and finds little exposed."""
    text = UNIT.read_text()
    loaded = set(re.findall(r"^LoadCredential=([\w-]+):", text, re.MULTILINE))
    assert loaded == set(re.findall(r"_FILE=%d/([\w-]+)$", text, re.MULTILINE))
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    program = tmp_path / "syncer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "syncer.service"
    unit.write_text(text.replace("/opt/syncer/bin/syncer", str(program)))
    for arguments in (["verify", "--man=no"], ["security", "--offline=yes", "--threshold=20"]):
        done = subprocess.run([analyze, *arguments, str(unit)], capture_output=True, text=True, check=False)
        said = [line for line in done.stderr.splitlines() if "syncer.service" in line]
        assert done.returncode == 0, done.stdout + done.stderr
        assert said == []


def test_compose_services_hang_together() -> None:
    """Dependencies and secrets exist; nothing listens beyond this machine."""
    compose = yaml.safe_load(COMPOSE.read_text())
    services = compose["services"]
    for one in services.values():
        assert one.get("depends_on", {}).keys() <= services.keys()
        assert set(one.get("secrets", [])) <= compose["secrets"].keys()
        assert all(str(port).startswith("127.0.0.1:") for port in one.get("ports", []))
        for variable, value in one["environment"].items():
            if variable.endswith("_FILE"):
                assert Path(value).name in one["secrets"]
    waited = [
        name
        for one in services.values()
        for name, how in one.get("depends_on", {}).items()
        if "healthy" in how["condition"]
    ]
    assert all("healthcheck" in services[name] for name in waited)
