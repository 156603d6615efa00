"""The command line, one module per topic."""

from intnacl.cli.program import app, main

__all__ = ["app", "main"]
