"""posembed: learned position embeddings for PyTorch.

``__init__.pyi`` lists the public names and their files. Each name is imported on first use, so that
``posembed --help`` runs without loading torch.
"""

from importlib.util import find_spec
from inspect import ismodule

import lazy_loader

from posembed._version import __version__

_imported, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
MODULES = ("errors", "inputs", "layers", "nn", "plots", "positions", "tables")
__all__ = [name for name in _names if name not in MODULES] + ["__version__"]
"""The names of ``from posembed import *``. Modules are left out, to keep the user's own ``nn``."""


def __getattr__(name: str) -> object:
    if name in _names or name[:1] == "_" or not name.isidentifier() or find_spec(f"{__name__}.{name}"):
        return _imported(name)
    try:
        from posembed import inputs, layers, nn, positions, tables
    except ImportError:  # without torch
        return _imported(name)
    from posembed.calls import name_here

    listed = {"layers": layers.__all__, "tables": tables.__all__}
    for home, module in {"inputs": inputs, "nn": nn, "positions": positions}.items():
        listed[home] = [each for each, value in vars(module).items() if each[0] != "_" and not ismodule(value)]
    homes = {each: f"{home}.{each}" for home, names in listed.items() for each in names}
    homes |= {each: each for each in _names}
    if (here := name_here(name, homes)) is not None:  # `from posembed import name` drops an AttributeError's words
        raise ImportError(f"posembed has no {name}: here it is posembed.{here} (docs/coming-from.md)", name=__name__)
    return _imported(name)
