"""Secret files: a setting that is a secret may be the content of a file, as Docker, Kubernetes and systemd hand it.

Where ``SYNCER_POSTGRES_DSN`` would hold the secret, ``SYNCER_POSTGRES_DSN_FILE`` names the file that holds it; so does
``dsn_file`` below ``postgres`` in config/syncer.yaml. A line break at the end of the file is not part of the secret.

Guarantees that no error shows what is in the file, nor what the variable was set to: who confuses the two has put the
secret there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, YamlConfigSettingsSource

from syncer.errors import ConfigError

_SUFFIX = "_file"
_HINT = "It is to name a file that the user who runs syncer may read, and that holds the secret and nothing else."


class Environment(EnvSettingsSource):
    """Environment variables; those that end in ``_FILE`` name a file."""

    def __call__(self) -> dict[str, Any]:
        """What the environment says, section by section."""
        return _resolved(self.settings_cls, super().__call__(), _variable)


class File(YamlConfigSettingsSource):
    """config/syncer.yaml; a key that ends in ``_file`` names a file.

    Args:
        settings_cls: Whose settings they are.
        path: Where it is.
    """

    def __init__(self, settings_cls: type[BaseSettings], path: Path) -> None:
        self._path = path
        super().__init__(settings_cls, path)

    def __call__(self) -> dict[str, Any]:
        """What the file says, section by section."""
        return _resolved(self.settings_cls, super().__call__(), self._key)

    def _key(self, section: str, key: str) -> str:
        return f"{section}.{key} of {self._path}"


def secrets(section: type[BaseModel]) -> list[str]:
    """The settings of a section that may be given by a file."""
    return [name for name, field in section.model_fields.items() if _is_secret(field)]


def _is_secret(field: FieldInfo) -> bool:
    """Whether no output shows it."""
    return not field.repr or SecretStr in (field.annotation, *get_args(field.annotation))


def _variable(section: str, key: str) -> str:
    return f"SYNCER_{section}_{key}".upper()


def _resolved(
    settings_cls: type[BaseSettings], said: dict[str, Any], named: Callable[[str, str], str]
) -> dict[str, Any]:
    """The same, with secrets in the place of files that hold them."""
    return {
        section: _of_section(section, values, settings_cls.model_fields.get(section), named)
        for section, values in said.items()
    }


def _of_section(section: str, values: Any, field: FieldInfo | None, named: Callable[[str, str], str]) -> Any:
    kind = None if field is None else field.annotation
    if not isinstance(values, Mapping) or not isinstance(kind, type) or not issubclass(kind, BaseModel):
        return values
    found = dict(values)
    for name in secrets(kind):
        key = name + _SUFFIX
        if found.get(key) in (None, ""):
            found.pop(key, None)
            continue
        if found.get(name):
            raise ConfigError(
                f"{named(section, name)} and {named(section, key)} are both set", hint="Leave one of them out."
            )
        if key in kind.model_fields:  # one that is read only by who needs it
            found[name] = None  # whatever a source says that this one goes before
            continue
        path = found.pop(key)
        secret = _read(path, named(section, key))
        found[name] = secret if kind.model_fields[name].annotation in _TEXTS else _parsed(secret, named(section, key))
    return found


_TEXTS = (str, SecretStr, SecretStr | None)


def _read(path: object, named: str) -> str:
    # No error of the system's is kept as a cause: it would say the path.
    try:
        secret = Path(str(path)).read_text("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"The file that {named} names is not UTF-8", hint=_HINT) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise ConfigError(f"The file that {named} names cannot be read: {why}", hint=_HINT) from None
    if not secret:
        raise ConfigError(f"The file that {named} names is empty", hint=_HINT)
    return secret


def _parsed(secret: str, named: str) -> Any:
    try:
        return yaml.safe_load(secret)
    except yaml.YAMLError:
        raise ConfigError(
            f"The file that {named} names is neither JSON nor YAML", hint='As in: {"sasl.password": "…"}'
        ) from None
