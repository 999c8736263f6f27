"""Any encoding of posembed inside the models of other libraries: ``transformers.py`` and ``timm.py``.

Import the module of the library that you use; ``import posembed`` loads neither.
"""
