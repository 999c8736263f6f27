"""Puts any posembed encoding into models of other libraries: ``transformers.py`` and ``timm.py``.

Import the module for the library that you use; ``import posembed`` loads neither.
"""
