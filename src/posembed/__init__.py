"""posembed: learned position embeddings for PyTorch.

``__init__.pyi`` lists the public names and their files. Each name is imported on first use, so that
``posembed --help`` runs without loading torch.
"""

import lazy_loader

from posembed._version import __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
