"""Times what this process does, and reads what was written; on ranks of `worlds` too."""

from contextlib import contextmanager

from samestep.observations import FORMAT, Observations, ObservationWriter, observations_path
from samestep.observed import VERSION, Start, Timing
from samestep.probe.timing import TimingInstallation


@contextmanager
def timing(folder, experiment=None, *, block=None, rank=0, size=1):
    """Time what this process does as one of `size` ranks."""
    writer = ObservationWriter(observations_path(folder, rank))
    writer.write(
        Start(
            format=FORMAT, version=VERSION, samestep="0", rank=rank, world_size=size, attempt=0, program=(),
            steps_in_full=0, most_bytes=2**24, python="3", host="", pid=0, time=0.0,
        )
    )  # fmt: skip
    experiment = None if experiment is None else experiment.on_rank(rank, size)
    installation = TimingInstallation(writer, block, experiment, is_cold=False)
    installation.install()
    try:
        yield installation
    finally:
        installation.uninstall()
        writer.close()


def rows(folder, kind, rank=0):
    return list(Observations.read(folder).of(rank, kind))


def spent_s(folder, phase, rank=0):
    """Seconds in a phase, over all blocks."""
    return sum(row.phases_s.get(phase, 0.0) for row in rows(folder, Timing, rank))
