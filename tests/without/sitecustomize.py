"""Takes a rule out of syncer: Python imports this module by itself when it starts, if its folder is on the path."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from tests import mutations


class _Patched(SourceFileLoader):
    """Loads a module, and replaces a part of it."""

    def __init__(self, fullname: str, file: str, *, path: str, instead: str) -> None:
        super().__init__(fullname, file)
        self._path, self._instead = path, instead

    def exec_module(self, module: ModuleType) -> None:
        """Execute it, and replace that part before anybody else sees the module."""
        super().exec_module(module)
        mutations.patch(module, self._path, partial(mutations.decoded, self._instead))


class _Finder(MetaPathFinder):
    """Finds one module, and has a part of it replaced."""

    def __init__(self, *, target: str, instead: str) -> None:
        self._module, _, self._path = target.partition(":")
        self._instead = instead

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, if it is the one."""
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Patched(fullname, spec.origin, path=self._path, instead=self._instead)
        return spec


if mutations.MUTATION in os.environ:
    sys.meta_path.insert(0, _Finder(**json.loads(os.environ[mutations.MUTATION])))
