"""Runs the guide. After a change, ``python tests/run_guide.py`` writes what it shows into docs/guide.ipynb."""

from __future__ import annotations

import builtins
import os
import sys
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot
import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import output_from_msg

from run_page import undone

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


def execute_here(notebook: NotebookNode, folder: Path) -> None:
    """Fill in the outputs of every cell as ``execute`` does, in this process, where much is imported already.

    Warnings are as an interpreter shows them, and what cells change of the process is as before afterwards.
    """
    from ipykernel.inprocess import InProcessKernelManager
    from ipykernel.inprocess.ipkernel import InProcessKernel
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    from zmq.utils import garbage

    main, backend, names = sys.modules["__main__"], matplotlib.get_backend(), set(vars(builtins))
    with undone(folder), matplotlib.rc_context():
        os.environ |= {"IPYTHONDIR": str(folder / "ipython"), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        warnings.resetwarnings()
        warnings.showwarning = lambda *told, **how: print(warnings.formatwarning(*told[:4]), file=sys.stderr)
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        no_thread = Config({"HistoryManager": {"enabled": False}})  # later tests fork
        manager = InProcessKernelManager(config=no_thread)
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        try:
            for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
                client.execute(cell.source)
                cell.execution_count = client.get_shell_msg(timeout=0)["content"]["execution_count"]
                cell.outputs = []
                while client.iopub_channel.msg_ready():
                    message = client.get_iopub_msg(timeout=0)
                    if message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
                        cell.outputs.append(output_from_msg(message))
                        assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])
        finally:
            client.stop_channels()
            manager.kernel.iopub_thread.stop()
            garbage.gc.stop()
            manager.shutdown_kernel()
            manager.kernel = None
            for single in (type(InteractiveShell.instance()), InProcessKernel):
                single.clear_instance()
            sys.modules["__main__"] = main
            for name in vars(builtins).keys() - names:
                delattr(builtins, name)
            matplotlib.pyplot.switch_backend(backend)


def main() -> None:
    notebook = nbformat.read(GUIDE, as_version=4)
    for cell in notebook.cells:
        cell.metadata = {}
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder))
    nbformat.write(notebook, GUIDE)


if __name__ == "__main__":
    main()
