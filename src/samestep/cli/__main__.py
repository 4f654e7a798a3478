"""`python -m samestep.cli`."""

from samestep.cli import main

if __name__ == "__main__":
    main()
