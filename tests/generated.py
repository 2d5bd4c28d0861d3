"""The files that are generated from the program and the tests: ``python -m tests.generated`` writes them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests import (
    dashboard,
    doctor_page,
    errors_page,
    events_page,
    json_page,
    metrics_page,
    reference_page,
)

REPOSITORY: Final = Path(__file__).parent.parent
FILES: Final[Mapping[str, Callable[[], str]]] = {
    "config/grafana/syncer.json": dashboard.page,
    "docs/commands.md": reference_page.commands_page,
    "docs/doctor.md": doctor_page.page,
    "docs/errors.md": errors_page.page,
    "docs/events.md": events_page.page,
    "docs/json.md": json_page.page,
    "docs/metrics.md": metrics_page.page,
    "docs/settings.md": reference_page.settings_page,
}

if __name__ == "__main__":
    for name, written in FILES.items():
        (REPOSITORY / name).write_text(written(), "utf-8")
