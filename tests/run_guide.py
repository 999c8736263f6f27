"""Runs the guide. After a change, ``python tests/run_guide.py`` writes what it shows into docs/guide.ipynb."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

GUIDE = Path(__file__).parents[1] / "docs" / "guide.ipynb"


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Fill in the outputs of every cell, in a new kernel that starts in an empty folder.

    Nothing is kept of when it ran or where, so that the same code on the same versions leaves the same file.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):  # nobody's own kernels and settings
            patch.setenv(name, str(folder / name.lower()))
        NotebookClient(
            notebook,
            timeout=600,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    notebook.metadata.language_info = {"name": "python"}


def main() -> None:
    notebook = nbformat.read(GUIDE, as_version=4)
    for cell in notebook.cells:
        cell.metadata = {}
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder))
    nbformat.write(notebook, GUIDE)


if __name__ == "__main__":
    main()
