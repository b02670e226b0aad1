"""`python -m svtool` is `svtool`."""

from svtool.cli import main

main()
