"""The verdicts of docs/claims.md on differences between runs rest on seeds, and on an interval that excludes zero."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_a_verdict_on_runs_names_a_command_with_seeds_and_its_stored_interval() -> None:
    pages = {"sharing": "sharing.md", "rows": "rows.md", "inits": "inits.md"}
    known = 0
    for line in (DOCS / "claims.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        found = re.match(r"`(posembed compare (sharing|rows)\b[^`]*)`$", cells[2]) if len(cells) > 4 else None
        if found is None or cells[-1].strip("| ") not in ("agree", "disagree"):
            continue
        command, page = found[1], (DOCS / pages[found[2]]).read_text(encoding="utf-8")
        assert "--seeds" in command, line
        assert f"    {command} --out" in page, command  # the page that stores its result
        after = page.split(f"    {command} --out")[1].replace("\N{MINUS SIGN}", "-")
        interval = re.search(r"([-+][\d.]+) to ([-+][\d.]+)", after)  # the first difference that the page gives
        assert interval is not None, command
        assert float(interval[1]) * float(interval[2]) > 0, command
        known += 1
    assert known == 2
