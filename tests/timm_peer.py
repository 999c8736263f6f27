"""timm, and others, where torchvision is missing: their models use nothing of it, but their packages import it."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence

import pytest


class _Named(type):
    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {})


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports torchvision and its modules as packages in which every name is an empty class."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        ours = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def exec_module(self, module: types.ModuleType) -> None:
        def named(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Named(name, (), {})

        module.__getattr__ = named  # type: ignore[method-assign]


def imported(package: str, module: str | None = None) -> types.ModuleType:
    """Imports a package that imports torchvision, or a module of it. Skips the test, or the module that is being
    imported, where the package is not installed."""
    if importlib.util.find_spec(package) is None and "POSEMBED_PROJECTS" not in os.environ:  # `make test-projects`
        pytest.skip(f"{package} is not installed; `make test-projects` installs it", allow_module_level=True)
    if importlib.util.find_spec("torchvision") is None and package not in sys.modules:
        if importlib.util.find_spec("transformers") is not None:  # looks for torchvision once
            importlib.import_module("transformers.utils").is_torchvision_available()
        finder = _Empty()
        sys.meta_path.append(finder)
        try:
            importlib.import_module(package)
        finally:
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
    return importlib.import_module(module or package)


def vision_transformer() -> types.ModuleType:
    return imported("timm", "timm.models.vision_transformer")
