"""Headless Chromium: what a page holds after its scripts have run, and what the console said."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SWITCHES = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars
    --allow-file-access-from-files --enable-logging=stderr --v=0 --virtual-time-budget=10000 --dump-dom
"""


def opened(address: str, folder: Path, *switches: str) -> tuple[str, list[str]]:
    """Opens an address and returns the page, as HTML, and the lines of the console. ``folder`` takes the profile."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *SWITCHES.split(), *switches, f"--user-data-dir={folder / 'profile'}", address]
    # In a group of its own: a browser that hangs has children, which must end with it.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True
    ) as browser:
        try:
            shown, logged = browser.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(browser.pid, signal.SIGKILL)
            raise
    assert shown, logged
    return shown, [line for line in logged.splitlines() if "CONSOLE" in line]
