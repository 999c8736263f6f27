"""The documents keep their word: links lead somewhere, code runs, commands and names are those of the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if blocks:
        command = [sys.executable, "-W", "error", "-c", "\n".join(blocks)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_commands_and_options_on_the_pages_exist() -> None:
    import typer.main

    from posembed.cli import app

    commands: dict[str, set[str]] = {}

    def walk(command: object, words: str) -> None:
        for name, child in getattr(command, "commands", {}).items():
            walk(child, f"{words} {name}")
        options = {option for p in command.params for option in getattr(p, "opts", [])}  # type: ignore[attr-defined]
        commands[words] = options | {"--help"}

    walk(typer.main.get_command(app), "posembed")
    top = "|".join(name.split()[1] for name in commands if len(name.split()) == 2)
    for page in PAGES:
        lost = re.findall(rf"^posembed (?:{top}) .*--.*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert not lost, f"{page.name} has a command that is not set as code: {lost[0]}"
        for line in re.findall(r"^ {4}posembed .*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            words = line.split("#")[0].split()
            known = [c for c in commands if " ".join(words).startswith(c + " ") or " ".join(words) == c]
            assert len(known) > 1, f"{page.name} shows a command that is not there: {line.strip()}"
            options = {word.split("=")[0] for word in words if word.startswith("--")}
            assert options <= commands[max(known, key=len)], f"{page.name}: {line.strip()}"


def test_every_command_is_on_a_page() -> None:
    import typer.main

    from posembed.cli import app

    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"posembed {name}" in text, f"no page shows `posembed {name}`"


def test_every_public_name_is_on_a_page_and_has_a_docstring() -> None:
    import posembed

    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in posembed.__all__:
        if not name.startswith("__"):
            assert re.search(rf"\b{name}\b", text), f"no page names posembed.{name}"
            value = getattr(posembed, name)
            assert isinstance(value, int) or (value.__doc__ or "").strip(), f"posembed.{name} has no docstring"
