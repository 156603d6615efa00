"""Render formulas as MathML, which browsers draw without a script from another server."""

import re

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator


def mathml(node: nodes.Element, *, block: bool) -> str:
    """Convert a formula from TeX to a MathML element.

    docutils supports \\Bigl and \\Bigr but not \\Big, and reads the digits of \\tfrac12 as one number.
    """
    tex = re.sub(r"\\[td]?frac(\d)(\d)", r"\\frac{\1}{\2}", node.astext())
    tex = re.sub(r"\\([bB]igg?)(\\?[(\[{|])", r"\\\1l\2", tex)
    tex = re.sub(r"\\([bB]igg?)(\\?[)\]}|])", r"\\\1r\2", tex)
    return "".join(latex2mathml.tex2mathml(tex, as_block=block))


def visit_inline(self: HTML5Translator, node: nodes.Element) -> None:
    """Write an inline formula."""
    self.body.append(mathml(node, block=False))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.Element) -> None:
    """Write a display formula, which scrolls if it is wider than the page."""
    self.body.append(f'<div class="formula">{mathml(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register with Sphinx."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
