"""The reference says what the program says, and says something of everything."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from syncer.base import settings
from syncer.base.settings import Settings
from tests import reference_page


def test_the_commands_are_those_of_the_program() -> None:
    """docs/commands.md is as `python -m tests.reference_page` writes it."""
    said = reference_page.COMMANDS.read_text("utf-8")
    assert said == reference_page.commands_page(), "Run: python -m tests.reference_page"


def test_the_settings_are_those_of_the_program() -> None:
    """docs/settings.md is as `python -m tests.reference_page` writes it."""
    said = reference_page.SETTINGS.read_text("utf-8")
    assert said == reference_page.settings_page(), "Run: python -m tests.reference_page"


@pytest.mark.parametrize("section", Settings.model_fields)
def test_every_setting_is_explained(section: str) -> None:
    """Each has a docstring, which the reference shows."""
    kind = Settings.model_fields[section].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, BaseModel)
    assert kind.model_fields.keys() - reference_page.docstrings(settings, kind).keys() == set()
