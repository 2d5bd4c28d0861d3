"""What docs/locks.md shows is what runs."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.locks import Locks
from syncer.sandbox import Endpoints
from tests.support.locking import files
from tests.support.world import REPOSITORY

PAGE = (REPOSITORY / "docs" / "locks.md").read_text("utf-8")
_EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def index(endpoints: Endpoints) -> Iterator[str]:
    """The index of the example, under a name of its own."""
    name = f"files-{random.randrange(10**9)}"
    with Elasticsearch(endpoints.elasticsearch_url, request_timeout=60) as client:
        client.indices.create(index=name, **files.INDEX_BODY)
        yield name
        client.indices.delete(index=[name, f"{name}-locks", f"{name}-locks-intents"], ignore_unavailable=True)


def test_the_examples_run_one_after_the_other(endpoints: Endpoints, index: str) -> None:
    """As they are, but for the address and the names of the indices; then the guide's renames."""
    known: dict[str, Any] = {}
    with Elasticsearch(endpoints.elasticsearch_url, request_timeout=60) as client:
        client.index(
            index=index,
            id="1",
            document={"name": "README.txt", "path": "/clinton/projects"},
            version=1,
            version_type="external",
            refresh=True,
        )
        for example in _EXAMPLES:
            here = example.replace("http://127.0.0.1:9200", endpoints.elasticsearch_url).replace('"files"', repr(index))
            exec(here.replace('owner="importer"', f'owner="importer", index="{index}-locks"'), known)  # noqa: S102
        with Locks(client, owner="test", index=f"{index}-locks") as locks:
            assert known["rename_directory"](locks, client, index, "/clinton", "/bill") == 1
            known["rename_file"](locks, client, index, "1", "README.md")
        assert client.get(index=index, id="1")["_source"] == {"name": "README.md", "path": "/bill/projects"}


@pytest.mark.parametrize("name", ["rename_directory", "moved", "rename_file", "require_free"])
def test_the_example_is_the_one_that_is_tested(name: str) -> None:
    """Each function stands on the page as it stands in tests/support/locking/files.py."""
    assert inspect.getsource(getattr(files, name)) in PAGE
