"""ForkRunner: runs scripts as `samestep verify` does, with ranks forked where torch is loaded already.

Python draws its hash seed when it starts, so there are several such processes, each with a seed of its own:
ranks of one run, and the same rank in runs of different names, come from different ones. They stay until this
process ends, or a script needs modules that they lack.
"""

import atexit
from pathlib import Path

from samestep.experiment import Experiment
from samestep.launch.job import Job
from samestep.launch.warm import Warm
from samestep.launch.watched import Watched
from samestep.verify.runner import Run

NUM_WARM = 3
LATER = {
    "accelerate": ("accelerate",),
    "lightning": ("lightning",),
    "transformers": ("accelerate", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
}
"""What a script that has the word in it is going to import."""


class ForkRunner:
    """A Runner for one script; runs go to folders below `out`. Further settings are those of `Watched`."""

    def __init__(self, script, arguments=(), *, out, threads=1, **settings):
        self.out = Path(out)
        job = Job(command="script", script=(str(script), *arguments))
        self.watched = Watched(job=job, threads=threads, start=Fork(script), **settings)

    def __call__(self, name, world_size, experiment=None, *, why=""):
        experiment = experiment or Experiment()
        folder = self.out / name
        ended = self.watched.run(folder, world_size, experiment)
        return Run(
            name=name,
            world_size=world_size,
            folder=folder,
            status=ended.status,
            experiment=experiment,
            failure=ended.failure,
            seconds=ended.seconds,
        )


class Fork:
    """Starts ranks, as `launch.starting.Start`; what the script is going to import is imported before."""

    _warm: dict = {}  # noqa: RUF012
    """By the number of threads: one, and the modules that it was made with."""

    def __init__(self, script):
        text = Path(script).read_text(encoding="utf-8", errors="replace")
        self._modules = {module for word, names in LATER.items() if word in text for module in names}

    def __call__(self, arguments, env, logs):
        threads = env["OMP_NUM_THREADS"]
        warm, loaded = self._warm.get(threads, (None, set()))
        if warm is None or not self._modules <= loaded:
            if warm is not None:
                warm.close()
            loaded = loaded | self._modules
            warm = Warm(threads=int(threads), num=NUM_WARM, modules=sorted(loaded))
            atexit.register(warm.close)
            self._warm[threads] = warm, loaded
        process = warm(arguments, env, logs)
        assert not warm.remarks, warm.remarks
        return process
