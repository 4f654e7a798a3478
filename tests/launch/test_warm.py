"""Ranks that are forked do what ranks that are started do, and leave as little behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_keeper import STAY, alive, pids, wait_until

from samestep.launch import warm as module
from samestep.launch.family import descendants
from samestep.launch.job import Job
from samestep.launch.starting import Kept
from samestep.launch.warm import Warm
from samestep.launch.watched import Watched
from samestep.record import rank_folder

THREADS = 2
WAIT_S = 20.0
# all that a program could ask about itself, but for what differs from run to run
TOLD = """
import json, multiprocessing, os, resource, signal, sys, threading
import numpy, torch, torch.utils.data
from threadpoolctl import threadpool_info
import beside

OF_A_RUN = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "PYTHONHASHSEED", "PYTEST_CURRENT_TEST")

class Kind:
    def __del__(self):
        print("gone", len(ABOUT) > 5)

def say(name):
    print(name, __name__, multiprocessing.current_process().name, os.getcwd(), flush=True)

def double(batch):
    return [2 * each for each in batch], __name__

def blas():
    return [pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"]

if __name__ == "__main__":
    main = sys.modules["__main__"]
    ABOUT = {
        "name": (__name__, os.path.basename(__file__), getattr(__spec__, "name", None), main.say is say),
        "words": (sys.argv, sys.orig_argv[1:3], sys.orig_argv[-1]),
        "path": sys.path,
        "flags": list(sys.flags),
        "folder": os.getcwd(),
        "env": {k: v for k, v in sorted(os.environ.items()) if k not in OF_A_RUN},
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads(), blas()),
        "signals": [str(signal.getsignal(n)) for n in (2, 10, 13, 15, 17)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "alone": (os.getsid(0) == os.getpid(), threading.main_thread() is threading.current_thread()),
        "files": [os.readlink(f"/proc/self/fd/{n}").startswith("/") for n in range(3)],
        "streams": [(s.encoding, s.errors, s.write_through) for s in (sys.stdout, sys.stderr)],
        "mask": os.umask(0o22),
        "limits": resource.getrlimit(resource.RLIMIT_CORE),
        "read": sys.stdin.read(),
        "beside": beside.VALUE,
        "seeded": os.environ["PYTHONHASHSEED"] not in ("", "random"),
    }
    print(json.dumps(ABOUT))
    for method in ("fork", "spawn"):
        if method == "fork" or "--c" in sys.argv:
            child = multiprocessing.get_context(method).Process(target=say, args=(method,), name=method)
            child.start()
            child.join()
        data = torch.utils.data.DataLoader(
            range(6), 3, num_workers=1, collate_fn=double, multiprocessing_context=method)
        print(list(data))
    large = torch.ones(700, 700)
    print(float((large @ large).sum()), float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()))
    kept = Kind()
    with open("caf\\u00e9.txt", "w") as file:
        print("caf\\u00e9", file=file)
"""
HASHES = (
    "import os, random, numpy, subprocess, sys, torch\n"
    "again = subprocess.run([sys.executable, '-c', 'print(hash(\"a\"))'], capture_output=True, text=True)\n"
    "print(random.random(), numpy.random.rand(), torch.rand(()).item(), hash('a'), again.stdout.strip())\n"
)


@pytest.fixture(autouse=True)
def _cpu_ranks(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def warm():
    with Warm(threads=THREADS, num=2) as start:
        yield start
        assert start.remarks == []


def run(start, folder, *words, ranks=1, name="run", threads=THREADS, **settings):
    job = Job(command="script", script=words)
    return Watched(job=job, threads=threads, start=start, **settings).run(folder / name, ranks)


def output(folder, rank=0, name="run"):
    own = rank_folder(folder / name, rank)
    return (own / "stdout.log").read_text(), (own / "stderr.log").read_text()


def both(folder, warm, *words):
    """How a run ended and what was said, of a rank that was started and of one that was forked."""
    found = []
    for name, start in (("started", Kept), ("forked", warm)):
        ended = run(start, folder, *words, name=name)
        found.append((ended.status, dict(ended.exit_codes), ended.failure, *output(folder, name=name)))
    return found


@pytest.mark.parametrize("words", [("below/told.py", "a b", "--c"), ("-m", "below.told", "a b")])
def test_a_program_finds_what_it_finds_when_started(tmp_path, monkeypatch, warm, words):
    monkeypatch.chdir(tmp_path)
    below = tmp_path / "below"
    below.mkdir()
    (below / "told.py").write_text(TOLD)
    for folder, value in ((tmp_path, "working folder"), (below, "script's folder")):
        (folder / "beside.py").write_text(f"VALUE = {value!r}")
    started, forked = both(tmp_path, warm, *words)
    about = [json.loads(each[3].splitlines()[0]) for each in (started, forked)]
    for name, value in about[0].items():
        assert about[1][name] == value, name
    assert forked == started and started[0] == "finished" and started[4] == ""
    assert about[1]["threads"][0] == THREADS and about[1]["beside"].startswith(
        ("script", "working")[words[0] == "-m"]
    )
    assert started[3].splitlines()[-1] == "gone True"


def test_its_lines_are_told_from_its_own_folder(tmp_path, monkeypatch, warm):
    """The process that it is forked from has been in others before."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        (tmp_path / name / "line.py").write_text("from samestep.probe.callers import where\nprint(where())\n")
        started, forked = both(tmp_path / name, warm, "line.py")
        assert started[3] == forked[3] == "line.py:2\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("raise ValueError('bad')", 1),
        ("int('x')", 1),
        ("sys.exit('no such thing')", 1),
        ("sys.exit(7)", 7),
        ("sys.exit()", 0),
        ("raise KeyboardInterrupt", -2),
        ("os._exit(5)", 5),
        ("os.kill(os.getpid(), 11)", -11),
        ("def hook(*a): print('seen', a[0])\nsys.excepthook = hook\nint('x')", 1),
        (
            "import atexit, threading as t\natexit.register(print, 2)\nt.Timer(0.1, print, [1]).start()",
            0,
        ),
    ],
)
def test_it_ends_as_when_started(tmp_path, monkeypatch, warm, line, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(f"import os, sys\ndef inner():\n    print('here')\n{line}\n")
    started, forked = both(tmp_path, warm, "script.py")
    assert forked == started and started[1] == {0: code} and "here" not in started[3]


def test_a_module_that_raises_is_shown_as_when_started(tmp_path, monkeypatch, warm):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raises.py").write_text(
        "try:\n    int('x')\nexcept ValueError as e:\n    raise KeyError(1) from e"
    )
    started, forked = both(tmp_path, warm, "-m", "raises")
    assert forked == started and "<frozen runpy>" in started[4] and "samestep" not in forked[4]


def test_the_first_line_runs_at_once(tmp_path, warm):
    (tmp_path / "script.py").write_text(
        "import time\nnow = time.clock_gettime(time.CLOCK_BOOTTIME)\n"
        "began = float(open('/proc/self/stat').read().rpartition(')')[2].split()[19])\n"
        "import os, torch\nprint(now - began / os.sysconf('SC_CLK_TCK'))"
    )
    for number in range(3):  # others may be busy
        run(warm, tmp_path, str(tmp_path / "script.py"), ranks=2, name=f"run-{number}")
    took = [float(output(tmp_path, rank, f"run-{n}")[0]) for rank in (0, 1) for n in range(3)]
    assert min(took) < 0.3


def test_ranks_draw_for_themselves_and_hash_as_their_children_do(tmp_path, warm):
    (tmp_path / "script.py").write_text(HASHES)
    said = []
    for name in ("one", "two"):
        run(warm, tmp_path, str(tmp_path / "script.py"), ranks=2, name=name)
        said += [output(tmp_path, rank, name)[0].split() for rank in (0, 1)]
    *draws, hashes, of_children = zip(*said, strict=True)
    assert [len(set(drawn)) for drawn in draws] == [4, 4, 4]
    assert hashes == of_children and hashes[0] != hashes[1] and hashes[2] != hashes[3]


def test_a_task(tmp_path):
    job = Job(command="train", target="samestep.demo:digits", overrides=("epochs=1",))
    digests = []
    with Warm(threads=1) as start:
        for name, how in (("forked", start), ("started", Kept)):
            ended = Watched(job=job, threads=1, steps=None, start=how).run(tmp_path / name, 2)
            assert ended.status == "finished", ended
            digests.append(json.loads((tmp_path / name / "result.json").read_text())["digest"])
        assert start.remarks == [] and digests[0] == digests[1]


def test_all_that_a_rank_started_ends_with_it(tmp_path, monkeypatch, warm):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(STAY)
    logs = tmp_path / "logs"
    logs.mkdir()
    env = dict(os.environ) | {"OMP_NUM_THREADS": str(THREADS), "PYTHONUNBUFFERED": "1", "RANK": "0"}
    env |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    process = warm([str(tmp_path / "run"), "script.py"], env, logs)
    found = pids(tmp_path)
    assert process.poll() is None and set(found) <= set(descendants(process.pid))
    process.kill()
    process.wait()
    assert process.poll() == -signal.SIGTERM and not any(map(alive, (process.pid, *found)))
    process.kill()  # nobody else is hit


HOLDER = """
import sys
from pathlib import Path
from samestep.launch.job import Job
from samestep.launch.warm import Warm
from samestep.launch.watched import Watched
with Warm(threads=1) as start:
    Watched(job=Job(command="script", script=("script.py",)), threads=1, start=start).run(Path("run"), 1)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_one_who_asked(tmp_path, sent):
    (tmp_path / "script.py").write_text(STAY)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True
    )
    found = [*pids(tmp_path), *descendants(holder.pid)]
    assert len(set(found)) >= 4  # the one that forks, the keeper, the rank and its child
    os.killpg(holder.pid, sent)  # as a terminal does
    error = holder.communicate(timeout=WAIT_S)[1]
    wait_until(lambda: not any(map(alive, found)), 5.0)
    assert (b"KeyboardInterrupt" in error) == (sent == signal.SIGINT)


def test_one_that_is_lost_takes_its_ranks_along_and_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(STAY)
    with Warm(threads=1) as start:

        def kill_it(ranks, said):
            if (tmp_path / "here").exists() and not (tmp_path / "lost").exists():
                (tmp_path / "lost").touch()
                start._servers[0]._process.kill()

        watched = Watched(job=Job(command="script", script=("script.py",)), threads=1, start=start)
        ended = watched.run(tmp_path / "run", 1, on_tick=kill_it)
        assert ended.status == "failed" and ended.exit_codes == {0: -signal.SIGTERM}
        assert not any(alive(int((tmp_path / name).read_text())) for name in ("here", "child"))
        (tmp_path / "script.py").write_text("print('again')")
        assert run(start, tmp_path, "script.py", name="more", threads=1).status == "finished"
        assert output(tmp_path, name="more")[0] == "again\n" and start.remarks == []


def test_a_request_that_is_cut_short_leaves_no_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(STAY)
    with Warm(threads=1) as start:
        (tmp_path / "quick.py").write_text("")
        run(start, tmp_path, "quick.py", name="first", threads=1)
        server = start._servers[0]
        hear = server.hear

        def interrupted(seconds=0.0):
            if seconds:
                monkeypatch.setattr(server, "hear", hear)
                wait_until((tmp_path / "here").exists)
                raise KeyboardInterrupt
            hear(seconds)

        monkeypatch.setattr(server, "hear", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(start, tmp_path, "script.py", threads=1)
        found = [int((tmp_path / name).read_text()) for name in ("here", "child")]
        wait_until(lambda: not any(map(alive, found)), 5.0)
        assert run(start, tmp_path, "quick.py", name="last", threads=1).status == "finished"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "2 threads",
        ),
        ("import torch\ntorch.cuda._initialized = True", "CUDA is in use"),
        ("raise OSError('no disk')", "busy_module cannot be loaded (OSError: no disk)"),
        ("import os\nos._exit(3)", "the process to fork it from has ended"),
    ],
)
def test_what_cannot_be_forked_is_started(tmp_path, monkeypatch, text, reason):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/busy_module.py").write_text(text)
    (tmp_path / "script.py").write_text("import sys\nprint('torch' in sys.modules)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    with Warm(threads=1, modules=["busy_module"]) as start:
        for name in ("run", "more"):
            assert (
                run(start, tmp_path, str(tmp_path / "script.py"), name=name, threads=1).status == "finished"
            )
    assert output(tmp_path)[0] == "False\n"
    assert len(start.remarks) == 1 and reason in start.remarks[0]


def test_another_environment_or_a_file_in_the_way_is_started(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nprint('torch' in sys.modules)\nimport queue\nprint(hasattr(queue, 'Queue'))"
    )
    with Warm(threads=1) as start:
        run(start, tmp_path, str(script), threads=1)
        assert output(tmp_path)[0] == "True\nTrue\n" and start.remarks == []
        run(start, tmp_path, str(script), name="two", threads=2)
        assert "OMP_NUM_THREADS is 2, and was 1 where torch was loaded" in start.remarks[-1]
        (tmp_path / "queue.py").touch()
        run(start, tmp_path, str(script), name="hidden", threads=1)
        assert str(tmp_path / "queue.py") in start.remarks[-1] and len(start.remarks) == 2
    for name, said in (("two", "False\nTrue\n"), ("hidden", "False\nFalse\n")):
        assert output(tmp_path, name=name)[0] == said


def test_elsewhere_all_are_started(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "Kept", lambda *request: asked.append(request))
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with Warm(threads=1) as start:
        start(["run", "script.py"], {"OMP_NUM_THREADS": "1"}, Path(tmp_path))
    assert len(asked) == 1 and "on darwin a process with torch cannot be forked" in start.remarks[0]


@pytest.mark.parametrize(("wish", "is_forked"), [(None, True), ("background_thread:true", False)])
def test_ranks_are_forked_where_arrow_is_loaded(tmp_path, monkeypatch, wish, is_forked):
    """It comes with pandas, and would run a thread; one that was asked for is left to run."""
    pytest.importorskip("pyarrow")
    monkeypatch.delenv("JE_ARROW_MALLOC_CONF", raising=False)
    if wish is not None:
        monkeypatch.setenv("JE_ARROW_MALLOC_CONF", wish)
    (tmp_path / "script.py").write_text("import os\nprint(os.environ.get('JE_ARROW_MALLOC_CONF'))\n")
    with Warm(threads=1, modules=("pyarrow",)) as start:
        run(start, tmp_path, str(tmp_path / "script.py"), threads=1)
        assert bool(start.remarks) == (not is_forked), start.remarks
    assert output(tmp_path)[0].strip() == str(wish)
