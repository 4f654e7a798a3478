"""Runs programs with and without the probe, and reads what it wrote."""

import os
import subprocess
import sys
from contextlib import contextmanager

from samestep.observations import FORMAT, Observations, ObservationWriter, observations_path
from samestep.observed import VERSION, Start

ABORTED = "terminate called without an active exception"
"""What gloo ends a rank with now and then, after all its work is done (pytorch #190489), watched or not."""


def run(*arguments, probe=None, ranks=None, options=(), cwd=None, **environment):
    """Run a program; `probe` is the folder that is filled, and `ranks` makes torchrun start it.

    One of several ranks that torch has aborted is run again, twice at most: torchrun takes it for a failure.
    """
    command = [sys.executable]
    if ranks is not None:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    if probe is not None:
        command += ["-m", "samestep.probe", str(probe), *options]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    for _ in range(3):
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=env,
            cwd=cwd,
            timeout=120,
            check=False,
        )
        if ranks is None or ABORTED not in done.stderr:
            break
    return done


@contextmanager
def watching(folder, steps=24, most_bytes=2**24, experiment=None):
    """Watch what this process does; yields the installation. Read with `Observations.read` afterwards."""
    from samestep.probe.installation import Installation

    writer = ObservationWriter(observations_path(folder, 0), most_bytes)
    writer.write(
        Start(
            format=FORMAT, version=VERSION, samestep="0", rank=0, world_size=1, attempt=0, program=(),
            steps_in_full=steps, most_bytes=most_bytes, python="3", host="", pid=0, time=0.0,
        )
    )  # fmt: skip
    installation = Installation(writer, steps, experiment)
    installation.install()
    try:
        yield installation
    finally:
        installation.uninstall()
        writer.close()


def seen(folder, kind, rank=0):
    return list(Observations.read(folder).of(rank, kind))
