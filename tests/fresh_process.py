"""Runs code as a new interpreter would, without importing torch anew each time.

A process imports torch and posembed once; each piece of code runs in a fork of it, where nothing else has run before.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

SERVER = """
import json, os, sys, traceback, types

import torch

import posembed

for line in sys.stdin:
    code, folder = json.loads(line)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            for stream in (1, 2):
                os.dup2(write, stream)
            os.chdir(folder)
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), vars(main))
            status = 0
        except SystemExit as end:
            status = 1 if end.code else 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    os.close(write)
    with os.fdopen(read, errors="replace") as pipe:
        printed = pipe.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), printed]), flush=True)
"""


@cache
def server() -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", SERVER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)  # its input ends, and so does it
    return process


def run_fresh(code: str, folder: Path) -> tuple[int, str]:
    """Runs code in a folder, with warnings as errors. Returns its exit status, and what it wrote to both outputs."""
    process = server()
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([code, str(folder)]), file=process.stdin, flush=True)
    status, printed = json.loads(process.stdout.readline())
    return status, printed
