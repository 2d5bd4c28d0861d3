"""The generated files are as the program and the tests are today."""

from __future__ import annotations

import pytest

from tests.generated import FILES, REPOSITORY


@pytest.mark.parametrize("name", FILES)
def test_a_generated_file_is_up_to_date(name: str) -> None:
    """It is what would be written now."""
    assert (REPOSITORY / name).read_text("utf-8") == FILES[name](), "Run: python -m tests.generated"
