"""`report.html` of one run: its figures and pictures in one file that needs no other."""

from typing import Any

from intnacl.measure.subject import Subject


def write_page(subject: Subject, result: dict[str, Any]) -> None:
    """Write the page."""
