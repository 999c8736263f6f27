"""The pages keep their word: links lead somewhere, code runs, and every command, option, name and path exists."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fresh_process import run_fresh
from run_page import WITH_OUTPUTS, outputs_here, shorter
from timm_peer import vision_transformer
from together import asked, together

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide.ipynb"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
CURRENT = [page for page in [*PAGES, GUIDE] if page.name != "CHANGELOG.md"]
"""The changelog may name what no longer exists."""
EXCERPTS = {"own-model.md", "transformers.md", "serve.md"}
"""Parts of programs that tests/examples runs, code that needs timm, and code that tests/test_serve.py runs."""
FENCES = {"python", "text", "py"}
"""Code that is run, what it prints, and excerpts of programs that a test runs."""
DEPENDENCIES = (
    (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [")[2].partition("]")[0]
)
INSTALLED = {"posembed", *re.findall(r'"(\w+)', DEPENDENCIES)}
"""What a page may import without saying how to install it."""
PACKAGES = {"transformers": "'posembed[hf]'"}
"""What to install for an import, if it is not called like the import."""
TRAIN = re.compile(r"posembed compare (?!cost)|python benchmarks/(length|learned_full_attention)\.py")
OTHER_LIBRARIES = ("torch", "nn", "transformers", "timm", "x_transformers", "fairseq", "torchtune", "Dim", "plt")
OTHER_OPTIONS = {"--num-processes", "--no-deps", "--max-batch-tokens", "--max-model-len", "--auto-truncate"}
FOLDERS = ("src", "tests", "docs", "benchmarks", "tools", "theme", "examples", "posembed")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@functools.cache
def text_of(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown")


WITH_CODE = [
    page
    for page in PAGES
    if "```python\n" in text_of(page) and name_of(page) not in (*WITH_OUTPUTS, "docs/coming-from.md")
]
"""The pages whose code is run here; tests/test_pages.py and tests/test_coming_from.py run that of the others."""


def blocks(page: Path) -> list[str]:
    """The lines of indented code, with continued lines joined."""
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL).replace("\\\n", " ")
    return [line.strip() for line in re.findall(r"^ {4}\S.*$", text, flags=re.MULTILINE)]


def inline(page: Path) -> list[str]:
    """The inline code of a page, without line breaks."""
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@together("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text_of(page)):
        if not target.startswith(("http://", "https://")):
            other = page.parent / target if target else page
            assert other.exists(), f"{page.name} links to {target}, which does not exist"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", text_of(other), flags=re.MULTILINE)
                assert anchor in map(slug, headings), f"{page.name} links to {target}#{anchor}: no such heading"


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    if page.name == "transformers.md":
        pytest.importorskip("transformers")
    code = re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL)
    if asked["whole"]:  # as a reader runs it
        status, printed = run_fresh(shorter("\n".join(code)), tmp_path)
        assert status == 0, printed
    else:
        outputs_here([shorter("\n".join(code))], tmp_path)


@together("page", PAGES)
def test_code_and_outputs_are_such_as_a_test_runs(page: Path) -> None:
    fences = set(re.findall(r"^ *```(.*)$", text_of(page), flags=re.MULTILINE)[::2])
    assert fences <= (FENCES if page.name in EXCERPTS else FENCES - {"py"})
    assert "text" not in fences or page.name in EXCERPTS or name_of(page) in WITH_OUTPUTS


def test_the_code_that_needs_timm_runs() -> None:
    vision_transformer()
    text = text_of(ROOT / "docs" / "transformers.md")
    [code] = re.findall(r"^```py\n(.*?)```", text, flags=re.DOTALL | re.MULTILINE)
    exec(code.replace("vit_base", "vit_tiny"), {})


@together("page", PAGES)
def test_what_a_page_imports_is_installed_before(page: Path) -> None:
    for block in re.finditer(r"^```python\n(.*?)```", text_of(page), flags=re.DOTALL | re.MULTILINE):
        before = " ".join(text_of(page)[: block.start()].split())
        imports = {name for line in ast.walk(ast.parse(block[1])) for name in imported(line)}
        for name in imports - INSTALLED - sys.stdlib_module_names:
            package = PACKAGES.get(name, name.replace("_", "-"))
            assert f"pip install {package}`" in before, (
                f"{page.name} imports {name}, and does not say how to install it"
            )


def imported(node: ast.AST) -> list[str]:
    """The packages that a statement imports."""
    match node:
        case ast.Import(names=names):
            return [name.name.partition(".")[0] for name in names]
        case ast.ImportFrom(module=str(module)):
            return [module.partition(".")[0]]
    return []


@together("page", CURRENT)
def test_a_page_with_commands_that_train_says_how_long_they_take(page: Path) -> None:
    if any(TRAIN.match(code) for code in blocks(page)):
        assert re.search(r"`--dry-run`|\bhours?\b|\bminutes\b", text_of(page)), page.name


@functools.cache
def commands() -> dict[str, set[str]]:
    """The options of every command, by its words."""
    from posembed.cli import app

    found: dict[str, set[str]] = {}

    def walk(command: Any, words: str) -> None:
        for name, child in getattr(command, "commands", {}).items():
            walk(child, f"{words} {name}")
        found[words] = {option for p in command.params for option in getattr(p, "opts", [])} | {"--help"}

    walk(app, "posembed")
    return found


def wrong_command(line: str) -> str | None:
    """Says what is wrong with ``posembed resize my-model --length 2048  # and so on``; None if nothing is."""
    words = line.split("#")[0].split()
    known = max((c for c in commands() if words[: len(c.split())] == c.split()), key=len)
    rest = words[len(known.split()) :]
    below = {c.split()[len(known.split())] for c in commands() if c.startswith(f"{known} ")}
    if below and rest and not rest[0].startswith("--"):
        return f"no command: {line}"
    unknown = {word.split("=")[0] for word in rest if word.startswith("--")} - commands()[known]
    return f"no option {', '.join(unknown)}: {line}" if unknown else None


@together("page", CURRENT)
def test_commands_and_options_exist(page: Path) -> None:
    top = "|".join(name.split()[1] for name in commands() if len(name.split()) == 2)
    lost = re.findall(rf"^posembed (?:{top}) .*--.*$", text_of(page), flags=re.MULTILINE)
    assert not lost, f"a command that is not set as code: {lost[0]}"
    shown = [code for code in (*blocks(page), *inline(page)) if code.startswith("posembed ")]
    assert [wrong for code in shown if (wrong := wrong_command(code))] == []


@together("page", CURRENT)
def test_scripts_and_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for code in (*blocks(page), *inline(page)):
        if found := re.match(r"python (\S+\.py)", code):
            assert (ROOT / found[1]).exists(), code
        if found := re.match(r"make ([\w-]+)", code):
            assert found[1] in targets, code


@functools.cache
def defined() -> frozenset[str]:
    """Every function, class, attribute, argument and variable of the package, by its own name."""
    found = set(dir(builtins))
    for path in (ROOT / "src" / "posembed").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    found.add(name)
    return frozenset(found)


def named(dotted: str) -> Any:
    """Returns the module or object that ``posembed.x.y`` names, and raises if there is none."""
    first, *parts = dotted.split(".")
    value: Any = importlib.import_module(first)
    for index, part in enumerate(parts):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(".".join((first, *parts[: index + 1])))
    return value


def keywords(code: str) -> Iterator[str]:
    """The keywords of a call that is written with ``...`` for what it leaves out."""
    return (found[1] for found in re.finditer(r"[(,]\s*(\w+)=", code))


CALL_OR_NAME = re.compile(r"^([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(\(.*\))?(?:\.\w+\(.*\))?$")


def wrong_name(code: str) -> str | None:
    """Says what is wrong with ``posembed.x.y``, ``table.weight`` or ``resize_table(..., grid=...)``."""
    import posembed

    found = CALL_OR_NAME.match(code)
    if (
        found is None
        or not ("." in found[1] or found[2])
        or re.search(r"\.(py|md|jsonl?|yml|html|toml|[ct]sv|txt|pt|bin|safetensors)$", code)
    ):
        return None
    first, *parts = found[1].split(".")
    if first in OTHER_LIBRARIES:
        return None
    if first == "posembed" or first in posembed.__all__:
        try:
            value = named(found[1] if first == "posembed" else f"posembed.{found[1]}")
        except (ImportError, AttributeError) as error:
            if first == "posembed" or parts[-1] not in defined():  # or a variable of the page, called like a module
                return f"{code}: {error}"
            return None
        given = set(keywords(found[2] or ""))
        if value is posembed.compare:  # its keywords are the options of the command
            known = {option[2:].replace("-", "_") for options in commands().values() for option in options}
        else:
            known = set(inspect.signature(value).parameters) if given else set()
        unknown = given - known
        return f"{code}: no argument {', '.join(unknown)}" if unknown else None
    unknown = {(parts or [first])[-1]} - defined()
    return f"{code}: nothing is called {', '.join(unknown)}" if unknown else None


@together("page", CURRENT)
def test_inline_names_exist(page: Path) -> None:
    shown = [*inline(page), *(code for code in blocks(page) if code.startswith("posembed."))]
    assert [wrong for code in shown if (wrong := wrong_name(code))] == []


@together("page", CURRENT)
def test_inline_paths_exist(page: Path) -> None:
    names = {path.name for folder in FOLDERS[:-1] for path in (ROOT / folder).rglob("*.py")}
    for code in inline(page):
        if re.fullmatch(rf"({'|'.join(FOLDERS)})(/[\w.*-]+)+/?", code) and "NAME" not in code:
            assert (ROOT / code).exists() or (ROOT / "src" / code).exists(), f"no file {code}"
        elif re.fullmatch(r"[\w-]+\.py", code):
            assert code in names, f"no file {code}"


@together("page", CURRENT)
def test_inline_options_exist(page: Path) -> None:
    options = set().union(*commands().values()) | OTHER_OPTIONS
    for script in (*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tools/*.py"), *ROOT.glob("examples/*.py")):
        options |= set(re.findall(r"\"(--[\w-]+)\"", script.read_text(encoding="utf-8")))
    unknown = [code for code in inline(page) if code.startswith("--") and re.split(r"[ =]", code)[0] not in options]
    assert unknown == []


def test_every_command_is_on_a_page() -> None:
    text = "\n".join(map(text_of, PAGES))
    for name in commands():
        assert len(name.split()) != 2 or name in text, f"no page shows `{name}`"


def test_every_public_name_is_on_a_page_and_has_a_docstring() -> None:
    import posembed

    text = "\n".join(map(text_of, PAGES))
    rooms = (posembed, posembed.layers, posembed.tables)
    for room, name in ((each, name) for each in rooms for name in each.__all__):
        if not name.startswith("__"):
            assert re.search(rf"\b{name}\b", text), f"no page names {room.__name__}.{name}"
            value = getattr(room, name)
            assert isinstance(value, int) or (value.__doc__ or "").strip(), f"{name} has no docstring"


def test_the_documentation_is_no_longer_than_it_may_be() -> None:
    """The guide and the research are each read in a day, and the README on two screens and a bit."""
    guide = [page for page in ROOT.glob("docs/*.md") if page.name != "design.md"]
    for pages, most in ((guide, 25_000), (ROOT.glob("docs/research/*.md"), 20_000)):
        words = {page.name: len(text_of(page).split()) for page in pages}
        assert sum(words.values()) <= most, f"{sum(words.values()):,} words, at most {most:,}: {words}"
    assert len(text_of(ROOT / "README.md").splitlines()) <= 120
