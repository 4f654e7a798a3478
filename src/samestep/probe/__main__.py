"""`python -m samestep.probe FOLDER [--steps K] [--most-mb M] SCRIPT [ARGS]`, or `-m MODULE` for SCRIPT."""

import sys

from samestep.probe.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
