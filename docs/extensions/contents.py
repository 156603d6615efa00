"""Build the site's sidebar from docs/index.md, which lists the pages for GitHub and for Sphinx.

Each heading with a list of links below it becomes a part of the sidebar, with the links as its pages.
"""

import posixpath
import re

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


def toctrees(text: str, folder: str) -> str:
    """Return hidden tables of contents, one for each list of links below a heading."""
    trees = []
    for part in text.split("\n## ")[1:]:
        title = part.splitlines()[0]
        links = re.findall(r"^- \[([^\]]+)\]\(([^)#]+)\)", part, re.MULTILINE)
        pages = [f"{text} <{_page(target, folder)}>" for text, target in links]
        if pages:
            trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]))
    return "\n\n".join(trees)


def _page(target: str, folder: str) -> str:
    """Return Sphinx's name of a file."""
    return posixpath.normpath(posixpath.join("/", folder, posixpath.splitext(target)[0]))


def add_toctrees(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the tables of contents to the first page."""
    if page == app.config.root_doc:
        source[0] += "\n\n" + toctrees(source[0], posixpath.dirname(page)) + "\n"


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register with Sphinx."""
    app.connect("source-read", add_toctrees)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
