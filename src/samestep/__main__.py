"""`python -m samestep`: the command line where the script `samestep` is not on the path."""

from samestep.cli import main

main()
