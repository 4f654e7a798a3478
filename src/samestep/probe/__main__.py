"""`python -m samestep.probe FOLDER [OPTIONS] SCRIPT [ARGS]`, or `-m MODULE` for SCRIPT; see `run.USAGE`."""

import sys

from samestep.probe.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
