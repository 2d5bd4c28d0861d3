"""What is published installs and runs by itself: from an empty folder, for a user with an empty home."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from syncer.sandbox import Endpoints, Sandbox
from tests.conftest import KEPT_SANDBOX
from tests.support.world import BLOG_SCHEMA, REPOSITORY, World

IN_SDIST = {
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "docker-compose.yml",
    "docs/security.md",
    "tests/support/world.py",
}
IN_WHEEL = {
    "syncer/_shipped/config/syncer.template.yaml",
    "syncer/_shipped/docs/operating.md",
    "syncer/demo/blog.sql",
    "syncer/demo/guide.yaml",
    "syncer/sandbox/artifacts.json",
    *(f"syncer/_shipped/migrations/{migration.name}" for migration in (REPOSITORY / "migrations").iterdir()),
}


MARKER = "marker-of-a-password"
EDITED = ("config/syncer.yaml", "config/documents/own/select.sql", "config/own.yaml", "own.env")
"""What a user adds to a checkout."""


def run(*command: str | Path, folder: Path, environment: dict[str, str] | None = None) -> str:
    """What a command prints that is to succeed."""
    completed = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert completed.returncode == 0, (command, completed.stdout, completed.stderr)
    return completed.stdout


def edited_checkout(folder: Path) -> Path:
    """Copy the repository, and add what a user adds to a checkout."""
    checkout = folder / "checkout"
    shutil.copytree(REPOSITORY, checkout, ignore=shutil.ignore_patterns(".*_cache", ".cache", ".git", ".venv", "site"))
    for name in EDITED:
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(MARKER)
    return checkout


def test_nothing_of_a_users_becomes_part_of_the_image(tmp_path: Path) -> None:
    """Rule: the wheel that the Dockerfile installs is built of listed files; settings never reach Docker at all."""
    checkout, context = edited_checkout(tmp_path), tmp_path / "context"
    ignored = (checkout / ".dockerignore").read_text().split()
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", (checkout / "Dockerfile").read_text(), re.MULTILINE)
    for source in " ".join(copies).split():
        target = context / source
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (checkout / source).is_dir() else shutil.copyfile
        copy(checkout / source, target)
    assert {file.name for file in context.rglob("*.yaml") if MARKER in file.read_text()} == set()
    assert "config/syncer.yaml" in ignored
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, context, folder=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as unpacked:
        assert set(unpacked.namelist()) >= IN_WHEEL
        assert [name for name in unpacked.namelist() if MARKER.encode() in unpacked.read(name)] == []


def test_the_wheel_of_the_sdist_runs_from_an_empty_folder(empty_world: World, tmp_path: Path) -> None:
    """sdist, its wheel, a fresh environment: init, migrate, plan, apply, verify and demo, all without a checkout."""
    world, packages, checkout = empty_world, tmp_path / "packages", edited_checkout(tmp_path)
    # The wheel is built from the sdist; nothing is fetched.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", packages, checkout, folder=tmp_path)
    (sdist,), (wheel,) = packages.glob("*.tar.gz"), packages.glob("*.whl")
    with tarfile.open(sdist) as archive:
        assert {name.partition("/")[2] for name in archive.getnames()} >= IN_SDIST
        assert [name for name in archive.getnames() if name.endswith(EDITED)] == []
    with zipfile.ZipFile(wheel) as unpacked:
        files = set(unpacked.namelist())
    assert files >= IN_WHEEL
    assert not [name for name in files if name.startswith(("tests/", "docs/"))]

    installed = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", installed, folder=tmp_path)
    (packages_folder,) = (installed / "lib").glob("python*/site-packages")
    # What it depends on is taken from here; the .pth of an editable syncer is not followed from there.
    (packages_folder / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ("install", "--quiet", "--no-deps", "--no-index")
    run(sys.executable, "-m", "pip", "--python", installed / "bin" / "python", *install, wheel, folder=tmp_path)
    home, folder = tmp_path / "home", tmp_path / "empty"
    home.mkdir()
    folder.mkdir()
    environment = {name: value for name, value in world.environment.items() if name.startswith("SYNCER_")}
    del environment["SYNCER_CONFIG"]
    environment |= {"HOME": str(home), "PATH": os.defpath, "COLUMNS": "120"}

    def syncer(*arguments: str) -> str:
        return run(installed / "bin" / "syncer", *arguments, folder=folder, environment=environment)

    program = "import syncer; print(syncer.__file__)"
    assert str(installed) in run(installed / "bin" / "python", "-c", program, folder=folder, environment=environment)
    assert syncer("--version").startswith("syncer 0.2.0")
    world.sql(BLOG_SCHEMA.read_text())
    world.sql("INSERT INTO users (name, email) VALUES ('John', 'j')")
    world.sql("INSERT INTO posts (user_id, title, body) VALUES (1, 't', 'b')")
    syncer("init", "--table", "posts", "--with", "comments", "--name", "blogpost")
    (folder / "config" / "documents" / "blogpost" / "document.yaml").write_text(f"index: {world.alias}\n")
    syncer("migrate")
    assert "new index, 1 document" in syncer("plan")
    syncer("apply", "--yes")
    syncer("verify")
    assert [document["user"]["name"] for document in world.held().values()] == ["John"]
    assert list(home.iterdir()) == []

    with tempfile.TemporaryDirectory(prefix="syncer-wheel-") as state:
        Path(state).chmod(0o755)
        downloads = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        environment = {name: value for name, value in environment.items() if not name.startswith("SYNCER_")}
        environment |= {"XDG_CACHE_HOME": downloads, "XDG_STATE_HOME": state}
        assert "1 of 4 documents" in syncer("demo", "join", "--no-kafka")


LINEAGE = ("tests/unit/test_columns.py", "tests/scenarios/test_derivation_follows_every_shape.py")


def test_the_lower_bounds_of_all_dependencies_suffice(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> None:
    """With the oldest versions that pyproject.toml allows, the commands start, and the same is derived from a SELECT.

    What only tests need is found behind these versions, where it is installed already.
    """
    assert endpoints.postgres_dsn
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    oldest = [re.sub(r">=([\d.]+).*", r"==\1", dependency) for dependency in project["dependencies"]]
    run(sys.executable, "-m", "pip", "install", "-q", "--target", tmp_path / "oldest", *oldest, folder=tmp_path)
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "oldest"), KEPT_SANDBOX: str(sandbox.folder)}
    version = "import sqlglot; print(sqlglot.__version__)"
    installed = run(sys.executable, "-c", version, folder=REPOSITORY, environment=variables).strip()
    assert f"sqlglot=={installed}".startswith(
        next(dependency for dependency in oldest if dependency.startswith("sqlglot"))
    )
    assert "Preview what apply would do" in run(
        sys.executable, "-m", "syncer", "plan", "--help", folder=REPOSITORY, environment=variables
    )
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning")
    run(sys.executable, *pytest, *LINEAGE, folder=REPOSITORY, environment=variables)
