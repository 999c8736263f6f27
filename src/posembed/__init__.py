"""posembed: learned position embeddings for PyTorch.

The public names and the files they live in are listed in ``__init__.pyi``; each is imported when first used,
so that ``posembed --help`` answers without loading torch.
"""

import lazy_loader

from posembed._version import __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
