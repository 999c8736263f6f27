"""Runs code as a new interpreter would, without importing torch anew each time.

A process imports torch and posembed once; each piece of code runs in a fork of it, where nothing else has run before.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

SERVER = """
import builtins, io, json, os, runpy, selectors, sys, traceback, types

import torch

import posembed

def run(given):
    os.chdir(given["cwd"])
    sys.path[:1] = [given["cwd"], *filter(None, given["env"].get("PYTHONPATH", "").split(os.pathsep))]
    os.environ.clear()
    os.environ.update(given["env"])
    coding = given["env"].get("PYTHONIOENCODING") or "utf-8"
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(file, "wb", closefd=False), encoding=coding, errors=errors, line_buffering=file == 2)
        for file, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    first, *rest = given["arguments"]
    sys.argv = [first, *rest[first in ("-c", "-m"):]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = builtins
    if first == "-c":
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        main.__file__ = first
        with open(first, encoding="utf-8") as file:
            exec(compile(file.read(), first, "exec"), vars(main))

def child(given, out, err):
    tty = given["terminal"] and os.open(given["terminal"], os.O_RDWR)
    for stream, file in enumerate((tty,) * 3 if tty else (os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(file, stream)
    status = 1
    try:
        run(given)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)

for line in sys.stdin:
    given = json.loads(line)
    read, out = os.pipe()
    read_err, err = (read, out) if given["together"] else os.pipe()
    full = os.open(given["stdout"], os.O_WRONLY) if given["stdout"] else out
    forked = os.fork()
    if not forked:
        child(given, full, err)
    for file in {out, err, full}:
        os.close(file)
    said = {read: b"", read_err: b""}
    with selectors.DefaultSelector() as waiting:
        for file in said:
            waiting.register(file, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                part = os.read(key.fd, 1 << 16)
                said[key.fd] += part
                if not part:
                    waiting.unregister(key.fd)
                    os.close(key.fd)
    status = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
    coding = given["env"].get("PYTHONIOENCODING") or "utf-8"
    print(json.dumps([status, *(said[file].decode(coding, "replace") for file in (read, read_err))]), flush=True)
"""


@cache
def server() -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", SERVER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)  # its input ends, and so does it
    return process


def run_python(
    *arguments: object,
    cwd: Path | str = ".",
    env: dict[str, str] | None = None,
    stdout: str = "",
    terminal: str = "",
    together: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -W error ARGUMENTS``: ``-c CODE``, ``-m MODULE`` or a file, and what they read from sys.argv.

    stdout: a file that takes the output; terminal: the device that is its input and both outputs; together: both
    outputs are one.
    """
    process = server()
    assert process.stdin is not None
    assert process.stdout is not None
    given = {
        "arguments": list(map(str, arguments)),
        "cwd": str(Path(cwd).resolve()),
        "stdout": stdout,
        "terminal": terminal,
    }
    given |= {"env": {**(os.environ if env is None else env)}, "together": together}
    print(json.dumps(given), file=process.stdin, flush=True)
    return subprocess.CompletedProcess(given["arguments"], *json.loads(process.stdout.readline()))


def run_fresh(code: str, folder: Path) -> tuple[int, str]:
    """Runs code in a folder, with warnings as errors. Returns its exit status, and what it wrote to both outputs."""
    done = run_python("-c", code, cwd=folder, together=True)
    return done.returncode, done.stdout
