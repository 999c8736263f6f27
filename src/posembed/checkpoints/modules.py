"""sentence-transformers' modules.json: which folders hold parts of one model."""

from __future__ import annotations

from pathlib import Path

from posembed.checkpoints.json_files import read_json


def module_folders(root: Path) -> list[Path]:
    """The folders whose weights belong to the model at ``root``, relative to it, without itself."""
    if not (root / "modules.json").exists():
        return []
    modules = read_json(root / "modules.json", expected=list)
    paths = [Path(str(module.get("path"))) for module in modules if isinstance(module, dict)]
    return [path for path in paths if path.parts]
