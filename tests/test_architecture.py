"""Who may import whom: the table of docs/design.md, held against the imports of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "posembed"

# Those of FOR_ALL are for all; anything not listed is forbidden.
MAY_IMPORT = {
    "positions": set(),
    "tables": set(),
    "layers": {"positions", "tables"},
    "modelfiles": {"tables"},
    "inputs": {"layers", "positions", "tables", "modelfiles"},
    "checkpoints": {"tables", "modelfiles"},
    "evaluation": {"checkpoints", "measure", "modelfiles"},
    "publish": {"checkpoints", "modelfiles"},
    "tuning": {"checkpoints", "evaluation", "lab", "measure", "modelfiles"},
    "nn": {"layers", "positions"},
    "integrations": {"nn", "layers", "checkpoints", "tables", "positions", "plots"},
    "measure": set(),
    "lab": {"measure", "nn", "layers", "positions", "tables", "checkpoints", "integrations"},
    "plots": {"tables", "layers", "nn", "checkpoints", "modelfiles"},
    "report": {"plots", "tables", "checkpoints", "evaluation", "lab", "measure", "tuning"},
    "comparison": {"lab", "measure", "report"},
    "cli": {"comparison", "nn", "layers", "inputs", "positions", "tables", "checkpoints", "evaluation", "lab",
            "measure", "publish", "report", "tuning"},
    "arguments": set(),
    "calls": set(),
    "errors": set(),
    "files": set(),
    "settings": set(),
    "statistics": set(),
    "torch_internals": set(),
    "versions": set(),
    "words": set(),
    "__main__": {"cli"},
    "_version": set(),
}  # fmt: skip
FOR_ALL = {"arguments", "calls", "errors", "files", "settings", "statistics", "torch_internals", "versions", "words"}
FOR_ALL |= {"_version"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imported_rooms(path: Path) -> set[str]:
    """The folders and files directly under posembed that this file imports, at any depth of its code."""
    rooms = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import from `posembed...`, not relatively"
            names = [node.module or ""]
            if node.module == "posembed":
                names = [f"posembed.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("posembed.")}
    return rooms


SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def test_imports_follow_the_table() -> None:
    for path in SOURCES:
        room = room_of(path)
        forbidden = imported_rooms(path) - MAY_IMPORT[room] - FOR_ALL - {room}
        assert not forbidden, f"{path}: posembed/{room} may not import {sorted(forbidden)}"


# What a command writes goes through `posembed.files`, which replaces nothing of anybody else's. The exceptions are
# the inside of a place that it gave, a file that is only appended to, and run folders, whose files have own names.
WRITES = re.compile(
    r"os\.(replace|rename|remove|unlink)\(|shutil\.(move|rmtree|copy)|\.write_(text|bytes)\(|\.(unlink|rename)\("
    r"|open\([^)]*[\"'](x|w|a)b?[\"']|FileIO\(|from posembed\.files import .*\b(written_whole|write_text)\b"
)
MAY_WRITE = ("files.py", "modelfiles/copies.py", "modelfiles/raw_files.py", "lab/cost/results.py", "measure/jobs.py")


def test_files_are_written_in_few_places() -> None:
    for path in SOURCES:
        name = path.relative_to(PACKAGE).as_posix()
        writes = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if WRITES.search(line)]
        assert not writes or name in MAY_WRITE or name.startswith("lab/runs/"), f"{name}: {writes}"


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_files(path: Path, files: Mapping[str, Path]) -> set[str]:
    """The files that this file imports at run time, at any depth of its code."""
    unseen = {
        inner
        for node in nodes(path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in set(nodes(path)) - unseen:
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{each.name}" for each in node.names} & files.keys() or {node.module or ""}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return (found & files.keys()) - {name_of(path)}


def test_the_table_names_every_room() -> None:
    assert {room_of(p) for p in SOURCES} <= set(MAY_IMPORT)


def test_every_permission_is_used() -> None:
    for room in set(MAY_IMPORT) - {"cli", "__main__", "_version"}:
        used = set().union(*(imported_rooms(path) for path in SOURCES if room_of(path) == room))
        assert MAY_IMPORT[room] <= used, f"posembed/{room} no longer imports {sorted(MAY_IMPORT[room] - used)}"


def test_no_files_import_each_other() -> None:
    """Also inside functions, also through others; what a type checker alone sees is left out."""
    files = {name_of(path): path for path in SOURCES}
    left = {name: imported_files(path, files) for name, path in files.items()}
    while free := [name for name, imports in left.items() if not imports & left.keys()]:
        for name in free:
            del left[name]
    while last := [name for name in left if not any(name in imports for imports in left.values())]:
        for name in last:
            del left[name]
    assert not left, sorted(left)


def test_no_folder_is_a_drawer() -> None:
    """At most 20 modules lie side by side, so that a newcomer can read the names of a folder."""
    folders = {path.parent for path in SOURCES}
    sizes = {folder: len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) for folder in folders}
    assert max(sizes.values()) <= 20, sizes
