"""Settings of the documentation site, built with Sphinx by `make docs`.

The source folder is the whole repository and include_patterns lists its pages, so that a relative link works
both here and on GitHub.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

import intnacl

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "intnacl"
author = "The intnacl authors"
project_copyright = author
release = version = intnacl.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.linkcode",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "myst_nb",
    "contents",
    "figures",
    "mathml",
    "source_pages",
]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/notebooks/*.ipynb",
    "docs/reference/*.rst",
    "benchmarks/README.md",
    "results/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
]
# Folders without pages, so that Sphinx does not walk through environments and runs.
exclude_patterns = [
    ".*",
    "docs/_build",
    "build",
    "carry",
    "data",
    "dist",
    "examples",
    "results/*/**",
    "runs",
    "src",
    "tests",
]

myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 4
nb_execution_mode = "off"  # the tests execute the notebooks, and the repository holds their pictures
nb_merge_streams = True

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["triton"]
templates_path = [str(Path(__file__).parent / "_templates")]
default_role = "literal"
add_module_names = False
napoleon_google_docstring = True
suppress_warnings = ["ref.python"]  # two settings share a name, such as steps, and neither is linked

html_theme = "furo"
html_title = f"intnacl {release}"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"


def to_rst(_app: Sphinx, _kind: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Turn plain text and Markdown fences into reStructuredText, in which |x| and a single * are escaped."""
    text, inside = [], False
    for line in lines:
        if line.strip().startswith("```"):
            inside = not inside
            text += ["::", ""] if inside else [""]
        elif inside:
            text.append(f"    {line}")
        else:
            text.append(re.sub(r"`[^`]*`|[|]|(?<!\*)\*(?!\*)", escaped, line))
    lines[:] = text


def escaped(found: re.Match[str]) -> str:
    """The matched markup character with a backslash before it, or code between backticks unchanged."""
    return found[0] if found[0].startswith("`") else "\\" + found[0]


def setup(app: Sphinx) -> None:
    """Register the conversion of docstrings with Sphinx."""
    app.connect("autodoc-process-docstring", to_rst, priority=400)  # before napoleon
