"""Folder: writes a draft, never over existing files."""

from __future__ import annotations

import shutil
from pathlib import Path

from syncer.apply.scaffold.document import Draft
from syncer.base import shipped
from syncer.base.errors import ConfigError

_FILE_NAME = "syncer.yaml"


def of(config_folder: Path, name: str) -> Path:
    """Return a document's folder."""
    return config_folder / "documents" / name


def require_free(config_folder: Path, name: str) -> None:
    """Refuse a document whose folder is not empty.

    Raises:
        ConfigError: It is not.
    """
    folder = of(config_folder, name)
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty", hint="Name another document with --name, or write over it with --force."
        )


def write(config_folder: Path, draft: Draft) -> list[Path]:
    """Write a draft, and config/syncer.yaml if there is none; return the files that were written.

    Raises:
        ConfigError: A file cannot be written.
    """
    folder = of(config_folder, draft.name)
    files = {"document.yaml": draft.options, "select.sql": draft.select, "index.json": draft.index}
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings = config_folder / _FILE_NAME
        if not settings.exists():
            shutil.copyfile(shipped.folder("config") / _FILE_NAME, settings)
            written.append(settings)
        for name, content in files.items():
            if content is not None:
                (folder / name).write_text(content, "utf-8")
                written.append(folder / name)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written: {error.strerror}",
            hint="SYNCER_CONFIG names another config folder.",
        ) from error
    return written
