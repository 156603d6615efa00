"""Add pages that show the repository's files to which other pages or the reference link.

A link to a file or a folder that is not a page of the site, such as `../src/intnacl/losses/nacl.py`, leads to
its text here. Where the link's text is the name of a function, class or constant, it leads to the line that
defines it.
"""

import html
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.typing import ExtensionMetadata

ROOT = Path(__file__).parents[2]
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".cff": "yaml"}
linked: set[str] = set()


def address(path: Path, line: int | None = None) -> str:
    """The page of a file or folder, from the root of the site."""
    name = path.resolve().relative_to(ROOT).as_posix()
    linked.add(name)
    return f"files/{name}.html" + (f"#line-{line}" if line else "")


def line_of(name: str, path: Path) -> int | None:
    """The line where a Python file defines a name; None if it does not."""
    if path.suffix != ".py":
        return None
    defined = re.compile(rf"(def {re.escape(name)}\b|class {re.escape(name)}\b|{re.escape(name)}(: .+)? = )")
    lines = path.read_text().splitlines()
    return next((number for number, line in enumerate(lines, 1) if defined.match(line)), None)


class LinksToFiles(SphinxTransform):
    """Point links to files and folders at their pages, before Sphinx copies or misses the files."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        page = ROOT / self.env.docname
        up = "../" * self.env.docname.count("/")
        wanted = lambda node: isinstance(node, addnodes.download_reference | addnodes.pending_xref)  # noqa: E731
        for node in list(self.document.findall(wanted)):
            path = page.parent / node["reftarget"]
            if (
                isinstance(node, addnodes.pending_xref) and node["reftarget"] == "README"
            ):  # index.md in its place
                uri = f"{up}{self.config.root_doc}.html"
            elif isinstance(node, addnodes.download_reference) or path.is_dir():
                uri = up + address(path, line_of(node.astext(), path))
            else:
                continue
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def text_of(app: Sphinx, path: Path) -> str:
    """Return the highlighted file with an anchor at each line, or the list of names in a folder."""
    if path.is_dir():
        names = sorted(
            entry.name + "/" * entry.is_dir() for entry in path.iterdir() if entry.name != "__pycache__"
        )
        return "<ul>" + "".join(f"<li><code>{html.escape(name)}</code></li>" for name in names) + "</ul>"
    language = LANGUAGES.get(path.suffix, "text")
    return app.builder.highlighter.highlight_block(path.read_text(), language, lineanchors="line")


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each linked file."""
    for name in sorted(linked):
        body = f"<h1>{html.escape(name)}</h1>{text_of(app, ROOT / name)}"
        yield f"files/{name}", {"title": name, "body": body}, "page.html"


def link_code(_: str, info: dict[str, str]) -> str | None:
    """Return the link from docs/reference to the source of a documented name, for sphinx.ext.linkcode."""
    found: Any = importlib.import_module(info["module"])
    path = Path(inspect.getsourcefile(found) or "")
    for part in info["fullname"].split("."):
        found = inspect.getattr_static(found, part, None)
    found = getattr(found, "__func__", getattr(found, "fget", found))
    try:
        path, line = Path(inspect.getsourcefile(found) or ""), inspect.getsourcelines(found)[1]
    except (TypeError, OSError):
        line = line_of(info["fullname"], path) or 1
    return "../../" + address(path, line) if path.is_relative_to(ROOT / "src") else None


def first_page(app: Sphinx, error: Exception | None) -> None:
    """Redirect the root of the site to its first page."""
    if error is None:
        first = f"{app.config.root_doc}.html"
        (Path(app.outdir) / "index.html").write_text(
            f'<meta http-equiv="refresh" content="0; url={first}">\n'
        )


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register with Sphinx."""
    app.config["linkcode_resolve"] = link_code
    app.add_transform(LinksToFiles)
    app.connect("html-collect-pages", pages)
    app.connect("build-finished", first_page)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
