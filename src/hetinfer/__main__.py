"""`python -m hetinfer`: the command line."""

from hetinfer.cli import main

main()
