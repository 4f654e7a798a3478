"""ForkRunner: runs scripts as `samestep verify` does, but from processes that have torch loaded already.

It differs from the real thing only in how a rank begins: forked instead of started, so that a run takes less
than a second. Environment, files, and when a run is ended are those of `launch/watched.py`.

Python draws its hash seed when it starts, so there are several warm processes, each with a seed of its own:
ranks of one run, and the same rank in runs of different names, come from different ones.
"""

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

from samestep.experiment import Experiment
from samestep.launch.job import Job
from samestep.launch.tether import die_with
from samestep.launch.watched import Watched
from samestep.verify.runner import Run

NUM_WARM = 3
ALWAYS = ("torch", "torch._dynamo", "torch.distributed", "torch.utils.data", "samestep.probe.installation")
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

    def __init__(self, script):
        text = Path(script).read_text(encoding="utf-8", errors="replace")
        self._modules = sorted({m for word, names in LATER.items() if word in text for m in names})

    def __call__(self, arguments, env, logs):
        number = int(env["RANK"]) + zlib.crc32(logs.parent.parent.name.encode())
        warm = Warm.get(number % NUM_WARM, env["OMP_NUM_THREADS"])
        return warm.fork(arguments=list(arguments), env=dict(env), logs=str(logs), modules=self._modules)


class Warm:
    """A process that ranks are forked from."""

    _all: dict = {}  # noqa: RUF012

    @classmethod
    def get(cls, number, threads):
        if (number, threads) not in cls._all:
            cls._all[number, threads] = cls(number, threads)
        return cls._all[number, threads]

    def __init__(self, number, threads):
        # libraries read these when they are loaded, and a fork must find no threads
        env = os.environ | {"PYTHONHASHSEED": str(number + 1), "OMP_NUM_THREADS": threads}
        self._process = subprocess.Popen(
            [sys.executable, "-u", __file__, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=env | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self.codes = {}
        self._pids = []
        atexit.register(self.close)

    def fork(self, **request):
        self._process.stdin.write(json.dumps(request | {"folder": str(Path.cwd())}) + "\n")
        self._process.stdin.flush()
        while not self._pids:
            self.hear(60.0)
        return Forked(self._pids.pop(), self)

    def hear(self, seconds=0.0):
        """Take in what it has said: that a rank was forked, or has ended."""
        while select.select([self._process.stdout], [], [], seconds)[0]:
            line = self._process.stdout.readline()
            assert line, f"the process that ranks are forked from has ended: {self._process.poll()}"
            said = json.loads(line)
            if "code" in said:
                self.codes[said["pid"]] = said["code"]
            else:
                self._pids.append(said["pid"])
            seconds = 0.0

    def close(self):
        self._process.kill()
        self._process.wait()


class Forked:
    """A rank that was forked."""

    def __init__(self, pid, warm):
        self.pid = pid
        self._warm = warm

    def poll(self):
        self._warm.hear()
        return self._warm.codes.get(self.pid)

    def kill(self):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # those that it left behind, too
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        deadline = time.monotonic() + 10.0
        while self.poll() is None:
            assert time.monotonic() < deadline, f"process {self.pid} cannot be killed"
            self._warm.hear(0.1)


def serve():
    """Fork a rank for each line of standard input; returns in the rank, with the arguments of the probe."""
    for name in ALWAYS:
        importlib.import_module(name)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(ended, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        ready, _, _ = select.select([sys.stdin, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _tell_ends()
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                sys.exit(0)
            request = json.loads(line)
            for name in request["modules"]:
                importlib.import_module(name)
            tasks = os.listdir("/proc/self/task")  # noqa: PTH208
            assert len(tasks) == 1, f"{len(tasks)} threads run where ranks are to be forked"
            warm, pid = os.getpid(), os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                os.close(ended)
                os.close(wake)
                return _become(request, warm)
            print(json.dumps({"pid": pid}), flush=True)


def _tell_ends():
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            print(json.dumps({"pid": found[0], "code": os.waitstatus_to_exitcode(found[1])}), flush=True)


def _become(request, warm):
    """Make this process what a rank is when its first line runs."""
    os.setsid()
    die_with(warm)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    logs = Path(request["logs"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, file in enumerate((Path(os.devnull), logs / "stdout.log", logs / "stderr.log")):
        opened = os.open(file, flags if number else os.O_RDONLY, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # a process that is started draws a seed of its own
    if "lightning_utilities.core.rank_zero" in sys.modules:  # read when it was loaded
        sys.modules["lightning_utilities.core.rank_zero"].rank_zero_only.rank = int(os.environ["RANK"])
    return request["arguments"]


def _run(arguments):
    """The exit code, with which `sys.exit(main(arguments))` would end."""
    from samestep.probe.run import main

    try:
        return main(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


def _end(code):
    """End as Python does, but for taking apart all modules, for which torch needs most of a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    _end(_run(serve()))
