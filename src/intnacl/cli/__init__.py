"""The command line, one file a topic."""

from intnacl.cli.program import app, main

__all__ = ["app", "main"]
