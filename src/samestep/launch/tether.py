"""Tether: a process that must not outlive the one that started it.

`python -m samestep.launch.tether PARENT COMMAND…` ties itself to process PARENT and becomes COMMAND. The
tie is the kernel's (Linux, prctl) and outlives exec, so it also binds programs that know nothing of it;
where the kernel has no such call nothing is tied.
"""

import ctypes
import os
import signal
import sys

TETHERED_TO = "SAMESTEP_TETHERED_TO"
_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which started it, ends in whatever way."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the tie was made
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parent, *command = sys.argv[1:]
    die_with(int(parent))
    os.environ[TETHERED_TO] = str(os.getpid())
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
