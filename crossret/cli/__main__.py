"""`python -m crossret.cli` is the command `crossret`."""

from crossret.cli import main

main()
