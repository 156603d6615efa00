"""The command line: `intnacl COMMAND --help` explains each command with examples.

Commands import what they need when they run, so that `--help` answers at once.
"""

import sys

from cyclopts import App

app = App(name="intnacl", help="Contrastive representation learning that is accurate and robust.")


def main() -> None:
    """Run the command line; a user's mistake ends in one clear line and exit code 2."""
    from intnacl.errors import InputError

    try:
        app()
    except InputError as error:
        print(f"intnacl: {error}", file=sys.stderr)
        sys.exit(2)
