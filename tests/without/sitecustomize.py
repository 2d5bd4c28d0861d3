"""Takes a rule out of syncer: Python imports this module by itself when it starts, if its folder is on the path."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType


class _Changed(SourceFileLoader):
    """Loads a module with one text changed."""

    def __init__(self, fullname: str, path: str, *, text: str, instead: str) -> None:
        super().__init__(fullname, path)
        self._text, self._instead = text, instead

    def get_code(self, fullname: str) -> CodeType:
        """The changed module's code, from no cache and into none."""
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        if source.count(self._text) != 1:
            raise ImportError(f"the text of the rule is not in {fullname} exactly once")
        return self.source_to_code(source.replace(self._text, self._instead).encode(), path)


class _Finder(MetaPathFinder):
    """Finds one module, and has it changed."""

    def __init__(self, *, module: str, text: str, instead: str) -> None:
        self._module, self._text, self._instead = module, text, instead

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, if it is the one."""
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Changed(fullname, spec.origin, text=self._text, instead=self._instead)
        return spec


if "SYNCER_TEST_MUTATION" in os.environ:
    _rule = json.loads(os.environ["SYNCER_TEST_MUTATION"])
    sys.meta_path.insert(0, _Finder(module=_rule["module"], text=_rule["text"], instead=_rule["instead"]))
