"""What mkdocs.yml cannot say: the guide as a page, pages from outside docs/, links to the reference, formulas."""

from __future__ import annotations

import ast
import base64
import functools
import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "posembed"
GUIDE = "docs/guide.ipynb"
MOVED = {GUIDE: "guide.md", "README.md": "readme.md"}
"""Files of the repository whose pages have other names; a README.md would be the first page of the site."""
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages outside docs/ that the navigation names; others come in if a page links to them."""
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")
CODE = re.compile(r"(```.*?```|(?<!`)`[^`]+`(?!`))", re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
OPTION = re.compile(r"<code>(--[\w-]+)</code>")
INTERVAL = re.compile(r"\([^()<>]*\d\N{EN DASH}[\d.][^()<>]*\)")
EXPORT = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Leaves out the page for missing pages: its links work only at the root of a server."""
    config.theme.static_templates.discard("404.html")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the guide, and every file of the repository that a page links to."""
    for file in guide(config):
        files.append(file)
    pages = list(files.documentation_pages())
    for path in ALWAYS:
        pages.append(page_from(path, config))
        files.append(pages[-1])
    for page in pages:  # grows
        for target in LINK.findall(page.content_string if page.is_documentation_page() else ""):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(origin(page)), target))
            if not path.startswith("docs/") and page_of(path) not in files.src_uris and (ROOT / path).is_file():
                pages.append(page_from(path, config))
                files.append(pages[-1])
    return files


def origin(file: File) -> str:
    """Returns the path in the repository of a page of the site."""
    for path, uri in MOVED.items():
        if file.src_uri == uri:
            return path
    inside = f"docs/{file.src_uri}"
    return inside if (ROOT / inside).exists() else file.src_uri


def page_of(path: str) -> str:
    """Returns the page of the site that shows a path of the repository."""
    if path in MOVED:
        return MOVED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") or path.endswith(".md") else f"{path}.md"


def page_from(path: str, config: MkDocsConfig) -> File:
    """Makes a page of a file outside docs/: of Markdown as it is, of any other text as code."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if not path.endswith(".md"):
        text = f"# {path}\n\n```{Path(path).suffix[1:]}\n{text}```\n"
    return File.generated(config, page_of(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV)


def guide(config: MkDocsConfig) -> Iterator[File]:
    """Turns the notebook, as it was last run, into a page and its pictures."""
    cells = json.loads((ROOT / GUIDE).read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for number, output in enumerate(cell["outputs"]):
            shown = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
            if "image/png" in shown:
                name = f"images/guide/{cell['id']}-{number}.png"
                yield File.generated(config, name, content=base64.b64decode(shown["image/png"]))
                parts.append(f"![Output of the code above]({name})")
            elif "text/html" in shown:
                parts.append(f'<div class="output">{shown["text/html"]}</div>')
            elif "text/markdown" in shown:
                parts.append(shown["text/markdown"])
            else:
                text = "".join(output.get("text", "")) or shown.get("text/plain", "")
                parts.append(f'<pre class="output">{html.escape(text.rstrip())}</pre>')
    parts.insert(1, '<a href="guide.ipynb" download>Download this page as a notebook</a>')
    yield File.generated(config, "guide.md", content="\n\n".join(parts))


def exports() -> dict[str, str]:
    """Returns where each public name is defined: ``posembed.Alibi`` -> ``posembed.layers.alibi.Alibi``."""
    found = {}
    for file in (PACKAGE / "__init__.pyi", *sorted(PACKAGE.glob("*/__init__.py*"))):
        package = ".".join(file.relative_to(PACKAGE.parent).parts[:-1])
        for module, name in EXPORT.findall(file.read_text(encoding="utf-8")):
            if module != ".":
                found[f"{package}.{name}"] = f"{module if module[0] != '.' else package + module}.{name}"
    return found


EXPORTS = exports()
MODULES = {entry.rpartition(".")[0] for entry in EXPORTS.values()}
ENTRIES = EXPORTS | {
    public.rpartition(".")[2]: entry
    for public, entry in EXPORTS.items()
    if re.search("[A-Z_]", public.rpartition(".")[2])  # `shifted` may also be an option's value
}
"""What is written as code on a page -> its entry in the reference."""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = posixpath.dirname(page.file.src_uri)
    if page.file.inclusion.is_not_in_nav():
        page.meta["search"] = {"boost": 0.1}  # files that a page links to are found after the pages

    def moved(match: re.Match[str]) -> str:
        """The link from this page of the site to the page of what the file of the repository links to."""
        if page.file.src_uri == "guide.md" and match[1].startswith("images/guide/"):
            return match[1]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin(page.file)), match[1]))
        return posixpath.relpath(page_of(path), here) if (ROOT / path).is_file() else match[1]

    parts = CODE.split(markdown)
    for index, part in enumerate(parts):
        if index % 2 == 0:
            parts[index] = LINK.sub(moved, part)
        elif (entry := ENTRIES.get(part[1:-1])) and may_link(parts[index - 1], parts[index + 1]):
            parts[index] = f"[{part}][{entry}]"
    markdown = "".join(parts)
    if page.file.src_uri.startswith("reference/"):
        markdown = re.sub(r"^::: (\S+)$", with_members, markdown, flags=re.MULTILINE)
        markdown = markdown.replace("<!-- every public name -->", "\n".join(listing()))
    return markdown


ALONE = "show_root_heading: true, show_root_toc_entry: true, show_root_full_path: false"


def may_link(before: str, after: str) -> bool:
    """Returns whether code between two pieces of a page may become a link: not in a heading, not in a link."""
    line = before.rpartition("\n")[2]
    return not line.startswith("#") and line.count("[") <= line.count("]") and not after.startswith("](")


def with_members(match: re.Match[str]) -> str:
    """Shows a public name alone, or of a module its public names, in their order."""
    if match[1] in EXPORTS:
        return f"::: {EXPORTS[match[1]]}\n    options: {{{ALONE}}}"
    names = [entry.rpartition(".")[2] for entry in EXPORTS.values() if entry.rpartition(".")[0] == match[1]]
    if not names:
        return match[0]
    source = source_of(match[1]).read_text(encoding="utf-8")
    names = [name for name in re.findall(r"^(?:class |def )?(\w+)", source, re.MULTILINE) if name in names]
    return f"::: {match[1]}\n    options:\n      members: [{', '.join(dict.fromkeys(names))}]"


def source_of(module: str) -> Path:
    return PACKAGE.parent / f"{module.replace('.', '/')}.py"


def listing() -> Iterator[str]:
    """Lists every public name with the first line of its docstring."""
    yield from ("| name | what it is |", "|---|---|")
    for public, entry in sorted(EXPORTS.items(), key=lambda pair: (pair[0].count("."), pair[0])):
        yield f"| [`{public}`][{entry}] | {first_line(entry).replace('|', chr(92) + '|')} |"


@functools.cache
def parsed(module: str) -> ast.Module:
    return ast.parse(source_of(module).read_text(encoding="utf-8"))


def first_line(entry: str) -> str:
    module, _, name = entry.rpartition(".")
    body = parsed(module).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            text = ast.get_docstring(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and name in ast.unparse(node).split("=")[0]:
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        else:
            continue
        return (text or "").partition("\n")[0]
    raise LookupError(f"{entry} is not in its file")


def on_page_content(page_html: str, **of_page: Any) -> str:
    """Turns formulas into MathML, which browsers draw themselves, and examples into code that can be pasted.

    An interval such as (4.93 to 5.26) and the name of an option stay on one line.
    """

    def drawn(match: re.Match[str]) -> str:
        inside = html.unescape(match[3]).strip()
        if match[2] == "(":
            return convert(inside)
        return f'<div class="formula">{convert(inside, display="block")}</div>'

    page_html = re.sub(r'<span class="gp">[^<]*</span>', "", page_html)  # prompts
    page_html = page_html.replace('<span class="go">', '<span class="go"># ')  # what the code prints
    page_html = INTERVAL.sub(r'<span class="unbroken">\g<0></span>', page_html)
    page_html = OPTION.sub(r'<code class="unbroken">\1</code>', page_html)
    return FORMULA.sub(drawn, page_html)
