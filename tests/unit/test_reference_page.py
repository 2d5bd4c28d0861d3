"""The reference says what the program says, and says something of everything."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from syncer.base import settings
from syncer.base.settings import Settings
from tests import reference_page


@pytest.mark.parametrize("section", Settings.model_fields)
def test_every_setting_is_explained(section: str) -> None:
    """Each has a docstring, which the reference shows."""
    kind = Settings.model_fields[section].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, BaseModel)
    assert kind.model_fields.keys() - reference_page.docstrings(settings, kind).keys() == set()
