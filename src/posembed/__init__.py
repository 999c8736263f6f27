"""posembed: learned position embeddings for PyTorch.

``__init__.pyi`` lists the public names and their files. Each name is imported on first use, so that
``posembed --help`` runs without loading torch.
"""

import lazy_loader

from posembed._version import __version__

_imported, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = [name for name in _names if name not in ("inputs", "nn", "plots", "positions")] + ["__version__"]
"""``from posembed import *`` does not replace ``torch.nn``, nor variables with the names of folders."""


def __getattr__(name: str) -> object:
    if name in _names or name.startswith("_"):
        return _imported(name)
    from posembed.calls import name_here

    if (here := name_here(name, _names)) is not None:  # `from posembed import name` drops an AttributeError's words
        raise ImportError(f"posembed has no {name}: here it is posembed.{here} (docs/coming-from.md)", name=__name__)
    return _imported(name)
