"""`python -m intnacl` is the command `intnacl`."""

from intnacl.cli import main

main()
