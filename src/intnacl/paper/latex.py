"""What LaTeX needs: text that it prints as it is, and tables that fit on its pages."""

import re

from intnacl.paper.cells import View

ROOM, COMPARED, ALONE = 12, 3, 2  # of a page's width, a column with published values, one without
SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "`": r"\textasciigrave{}", "'": r"\textquotesingle{}",
    "/": r"\slash{}",  # where a long path may break
    "±": r"$\pm$", "−": "$-$", "·": r"$\cdot$", "→": r"$\to$", "≤": r"$\leq$", "≥": r"$\geq$",
    "≈": r"$\approx$", "∞": r"$\infty$", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$",
    "δ": r"$\delta$", "ε": r"$\varepsilon$", "η": r"$\eta$", "θ": r"$\theta$", "λ": r"$\lambda$",
    "μ": r"$\mu$", "π": r"$\pi$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "φ": r"$\varphi$",
    "ω": r"$\omega$",
}  # fmt: skip
UNKNOWN = "¸ĦħĸĿŀŉŦŧſ"  # below U+0180, and not in the T1 fonts


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is; a character that its fonts lack by its number."""
    return re.sub("-(?=-)", "-{}", "".join(map(_escape, text)))  # two hyphens are no dash


def _escape(character: str) -> str:
    if character in SPECIAL or character.isspace():
        return SPECIAL.get(character, " ")
    known = character.isprintable() and (character < "\u0180" or character in "–—‘’“”…")
    return character if known and character not in UNKNOWN else f"[U+{ord(character):04X}]"


def parts(view: View) -> list[list[tuple[int, bool]]]:
    """The columns of a table, as many side by side as a page has room for: their places, and whether the
    paper has values for them."""
    found: list[list[tuple[int, bool]]] = []
    room = 0
    for place in range(len(view.columns)):
        compared = any(row[place].published for row in view.cells)
        width = COMPARED if compared else ALONE
        if width > room:
            found.append([])
            room = ROOM
        room -= width
        found[-1].append((place, compared))
    return found
