"""The public names: what ``posembed`` lists in ``__all__``, and what its public subpackages export."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from timm_peer import vision_transformer

SOURCE = Path(__file__).parents[1] / "src" / "posembed"
EXPORT = re.compile(r"^from \S+ import (\w+) as \1$", re.MULTILINE)
INTEGRATIONS = {
    "posembed.integrations.transformers": ("replace_positions", "from_pretrained", "TableCallback"),
    "posembed.integrations.timm": ("replace_positions",),
}


def public_names() -> dict[str, Any]:
    """Returns ``posembed.nn.Attention`` -> the class, and so on for every public name. Modules are not among them."""
    packages = {"posembed": tuple(importlib.import_module("posembed").__all__)}
    packages |= {name: names for name, names in INTEGRATIONS.items() if find_spec(name.rpartition(".")[2])}
    if "posembed.integrations.timm" in packages:
        vision_transformer()  # which it imports
    for file in SOURCE.glob("*/__init__.py*"):  # some packages list their names in an __init__.pyi
        if names := EXPORT.findall(file.read_text(encoding="utf-8")):
            packages[f"posembed.{file.parent.name}"] = tuple(names)
    found = {
        f"{package}.{name}": getattr(importlib.import_module(package), name)
        for package, names in packages.items()
        for name in names
        if not name.startswith("__")
    }
    return {name: value for name, value in found.items() if not isinstance(value, type(importlib))}
