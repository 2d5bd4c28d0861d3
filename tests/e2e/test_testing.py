"""The fixtures for users' own tests do what docs/testing.md says, with its own examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.world import REPOSITORY, World

PAGE = (REPOSITORY / "docs" / "testing.md").read_text()
DJANGO = """
from django.db import models

class Post(models.Model):
    title = models.TextField()
"""
SETTINGS = """
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql"}}
"""
SQLALCHEMY = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

class Base(DeclarativeBase):
    pass

class Post(Base):
    __tablename__ = "shop_post"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
"""
ROLLED_BACK = {
    "Django": """
import pytest
from shop.models import Post

@pytest.mark.django_db
def test_what_is_rolled_back_cannot_be_waited_for(syncer_index):
    Post.objects.create(title="Relations")
    with pytest.raises(Exception, match="TransactionTestCase"):
        syncer_index.wait()
""",
    "SQLAlchemy": """
import pytest
from shop.models import Post

def test_what_is_rolled_back_cannot_be_waited_for(session, syncer_index):
    session.add(Post(title="Relations"))
    session.flush()
    with pytest.raises(Exception, match="Commit before you wait"):
        syncer_index.wait()
    session.rollback()
""",
}


@pytest.mark.parametrize(("framework", "models"), [("Django", DJANGO), ("SQLAlchemy", SQLALCHEMY)])
def test_the_examples_of_the_page_pass(framework: str, models: str, empty_world: World, tmp_path: Path) -> None:
    """In a project of their own, on servers that the environment names; nothing is left in them."""
    world, project = empty_world, tmp_path / "project"
    section = PAGE.partition(f"## {framework}\n")[2].partition("\n## ")[0]
    conftest, tests = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for name, text in {
        "conftest.py": conftest,
        "test_shop.py": tests,
        "test_rolled_back.py": ROLLED_BACK[framework],
        "settings.py": SETTINGS,
        "shop/__init__.py": "",
        "shop/models.py": models,
        "config/documents/posts/document.yaml": f"index: {world.alias}",
        "config/documents/posts/select.sql": "SELECT p.id AS _id, p.title FROM shop_post AS p",
        "config/documents/posts/index.json": "{}",
    }.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    environment = _environment() | {
        "DJANGO_SETTINGS_MODULE": "settings",
        "SYNCER_TESTING_POSTGRES_DSN": world.dsn,
        "SYNCER_TESTING_ELASTICSEARCH_URL": world.endpoints.elasticsearch_url,
    }
    plugin = ["-p", "pytest_django"] if framework == "Django" else ["-p", "no:django"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin, "."]
    ended = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout
    with world.elasticsearch() as client:
        assert not client.indices.exists(index=f"{world.alias}*", allow_no_indices=False)


@pytest.mark.parametrize(
    ("workers", "files", "message"),
    [
        ("2", (), "Unset SYNCER_TESTING_POSTGRES_DSN"),
        ("1", ("config/documents/posts/select.sql",), "Error: documents/posts/document.yaml is missing"),
    ],
)
def test_what_cannot_work_is_refused(
    workers: str, files: tuple[str, ...], message: str, empty_world: World, tmp_path: Path
) -> None:
    """Workers that would share servers, and a file that is missing; the environment of the shell is not printed."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "conftest.py").write_text('pytest_plugins = ["syncer.testing"]')
    (project / "test_it.py").write_text("def test_it(syncer_index): pass")
    for name in files:
        (project / name).parent.mkdir(parents=True)
        (project / name).write_text("SELECT 1 AS _id")
    environment = _environment() | {
        "PYTEST_XDIST_WORKER_COUNT": workers,
        "SYNCER_TESTING_POSTGRES_DSN": empty_world.dsn,
        "SYNCER_TESTING_ELASTICSEARCH_URL": empty_world.endpoints.elasticsearch_url,
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:django", "."]
    ended = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, message in ended.stdout) == (1, True), ended.stdout + ended.stderr
    assert "'PATH':" not in ended.stdout


@pytest.mark.parametrize(
    "dsn", ["postgresql://syncer:{}@127.0.0.1:9/x", "host=127.0.0.1 port=9 password='{} x' user=x"]
)
def test_a_traceback_has_no_password(dsn: str, tmp_path: Path) -> None:
    """Not of a fixture that fails, of one that a project overrides, nor of a test; also with local variables."""
    (tmp_path / "conftest.py").write_text(
        'import pytest\npytest_plugins = ["syncer.testing"]\n@pytest.fixture(scope="session")\n'
        "def syncer_database(syncer_servers): return str(syncer_servers.postgres_dsn)"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_index(syncer_index): pass\ndef test_servers(syncer_servers): assert syncer_servers is None"
    )
    for name in ("document.yaml", "select.sql", "index.json"):
        file = tmp_path / "config" / "documents" / "x" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    environment = _environment() | {
        "SYNCER_TESTING_POSTGRES_DSN": dsn.format("s3cret-1"),
        "SYNCER_TESTING_ELASTICSEARCH_URL": "http://elastic:s3cret-2@127.0.0.1:9",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:django", "-vvl", "."]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ("1 failed, 1 error" in ended.stdout, "s3cret" in ended.stdout) == (True, False), ended.stdout


def _environment() -> dict[str, str]:
    """This process's variables, without those of syncer and of the workers that run these tests."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("SYNCER_", "PYTEST_"))}
