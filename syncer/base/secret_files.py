"""Settings from files: Docker, Kubernetes and systemd provide secrets as files.

``SYNCER_POSTGRES_DSN_FILE`` names a file that holds the value of ``SYNCER_POSTGRES_DSN``; likewise for every setting.

Guarantee: no error shows the file's content or the variable's value, which may be the secret itself, set by mistake.
"""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import EnvSettingsSource

from syncer.base.errors import ConfigError

_SUFFIX = "_file"


class Environment(EnvSettingsSource):
    """Environment variables; one whose name ends in ``_FILE`` names a file that holds the value."""

    def _load_env_vars(self) -> dict[str, str | None]:
        found = dict(super()._load_env_vars())  # keys are in lower case
        for section in self.settings_cls.model_fields:
            prefix = f"{self.env_prefix}{section}_".lower()
            for name in [key for key in found if key.startswith(prefix) and key.endswith(_SUFFIX)]:
                file, target = found.pop(name), name.removesuffix(_SUFFIX)
                if found.get(target):
                    raise ConfigError(f"{target.upper()} and {name.upper()} are both set", hint="Unset one of them.")
                found[target] = _read(file or "", name.upper())
        return found


def _read(file: str, variable: str) -> str:
    # The error is not chained: it quotes the path.
    try:
        content = Path(file).read_text("utf-8").rstrip("\r\n")
        reason = "is empty"
    except UnicodeDecodeError:
        content, reason = "", "is not UTF-8"
    except (OSError, ValueError) as error:
        content, reason = "", f"cannot be read: {getattr(error, 'strerror', 'not a path')}"
    if content:
        return content
    raise ConfigError(
        f"The file that {variable} names {reason}",
        hint="Name a file that holds the value and nothing else. The user that runs syncer must be able to read it.",
    )
