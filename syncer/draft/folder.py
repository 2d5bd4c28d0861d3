"""Folder: where a draft is written, and never over what is there."""

from __future__ import annotations

import shutil
from pathlib import Path

from syncer import shipped
from syncer.draft.document import Draft
from syncer.errors import ConfigError

_FILE_NAME = "syncer.yaml"


def require_free(config_folder: Path, name: str) -> None:
    """Refuse a document that has a folder with something in it.

    Raises:
        ConfigError: It has.
    """
    folder = config_folder / "documents" / name
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty", hint="Name another document with --document, or write over it with --force."
        )


def write(config_folder: Path, draft: Draft) -> list[Path]:
    """Write a draft, and config/syncer.yaml if there is none; the files that were written.

    Raises:
        ConfigError: The system does not let us.
    """
    folder = config_folder / "documents" / draft.name
    files = {"document.yaml": draft.options, "select.sql": draft.select, "index.json": draft.index}
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings = config_folder / _FILE_NAME
        if not settings.exists():
            shutil.copyfile(shipped.folder("config") / _FILE_NAME, settings)
            written.append(settings)
        for name, content in files.items():
            (folder / name).write_text(content, "utf-8")
            written.append(folder / name)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written: {error.strerror}",
            hint="SYNCER_CONFIG names another config folder.",
        ) from error
    return written
