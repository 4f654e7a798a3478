import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep import __version__, cli
from samestep.launch.failure import Failure
from samestep.launch.job import Job
from samestep.launch.limits import Limits
from samestep.launch.local import Outcome
from samestep.record import RecordWriter


@pytest.fixture
def samestep(monkeypatch, capsys, tmp_path):
    """Run the command line in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    for name in ("task.py", "t.py"):
        (tmp_path / name).touch()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["samestep", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


@pytest.fixture
def launched(monkeypatch):
    """Stand in for the launcher: notes each job, and writes a record of five steps as a run would."""
    jobs = []

    def launch(job, *, gpus, out, port, seat, threads, stall_after_s, on_tick):
        jobs.append((job, gpus.most, out))
        launch.limits, launch.threads = gpus, threads
        gpus = gpus.most
        out = out.resolve()
        out.mkdir(parents=True, exist_ok=launch.is_resumed)
        writer = RecordWriter(out, 0)
        writer.describe()
        for step in range(1, 6):
            gap = launch.gap if gpus > 1 else 0.0
            writer.step(step, epoch=1, examples=64 * step, loss=1.0 / step + gap, lr=0.1)
        result = {"status": "finished", "digest": "ab12", "world_size": gpus, "mode": "fast"}
        result |= {"steps": 5, "examples": 320, "seconds": 0.5}
        writer.finish(result)
        writer.close()
        on_tick([])
        return Outcome(status="finished", result=result, out=out)

    launch.gap, launch.is_resumed = 0.0, False
    monkeypatch.setattr("samestep.cli.running.launch", launch)
    return launch, jobs


def test_help_and_version_do_not_wait_for_torch():
    program = "import sys; sys.argv = ['samestep', '--version']\nimport samestep.cli as c\n"
    program += "try: c.main()\nfinally: sys.exit(3 if 'torch' in sys.modules else 0)"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"samestep {__version__}\n"
    assert time.monotonic() - began < 3  # 0.2 s on an idle machine; torch alone takes longer than 1 s


def test_train_prints_the_digest_alone_on_standard_output(samestep, launched):
    code, out, err = samestep("train", "task.py:small", "--gpus", 2, "--set", "lr=1", "--set", "x=[1]")
    assert (code, out) == (0, "ab12\n")
    assert "no GPU found: 2 CPU ranks (gloo)" in err and "training finished" in err
    job, gpus, folder = launched[1][0]
    assert (job.command, job.target, job.overrides) == ("train", "task.py:small", ("lr=1", "x=[1]"))
    assert gpus == 2 and str(folder).startswith("runs/small-")


def test_json_is_one_object_with_the_fields_of_the_contract(samestep, launched):
    code, out, _ = samestep("train", "task.py", "--json", "--out", "o")
    answer = json.loads(out)
    assert code == 0
    assert {"digest", "world_size", "mode", "steps", "examples", "out", "findings"} <= answer.keys()
    assert answer["digest"] == "ab12" and answer["findings"] == [] and answer["out"].endswith("/o")


def test_a_failed_run_is_one_sentence_and_exit_code_2(samestep, monkeypatch, tmp_path):
    failure = Failure(rank=1, sentence="Rank 1 failed: ValueError: bad", where="net.py:7")
    failed = Outcome(status="failed", result={"status": "failed"}, out=tmp_path, failure=failure)
    monkeypatch.setattr("samestep.cli.running.launch", lambda *a, **k: failed)
    code, out, err = samestep("train", "task.py")
    assert (code, out) == (2, "")
    assert err.splitlines()[1:] == ["error: Rank 1 failed: ValueError: bad", "    at net.py:7"]
    assert json.loads(samestep("train", "task.py", "--json")[1])["status"] == "failed"


@pytest.mark.parametrize(("text", "gpus"), [("n_gpus: 4", 4), ("lr: 1", 1), ("", 1), ("[1]", 1)])
def test_a_yaml_target_may_say_how_many(samestep, launched, tmp_path, text, gpus):
    (tmp_path / "c.yaml").write_text(text)
    samestep("train", "c.yaml")
    samestep("train", "c.yaml", "--gpus", 3, "--out", "x")
    assert [job[1] for job in launched[1]] == [gpus, 3]


@pytest.mark.parametrize(
    "text", ["n_gpus: many", "n_gpus: 0", "n_gpus: true", "a: [", "!!python/object:os.x {}"]
)
def test_a_yaml_target_that_is_no_use(samestep, launched, tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    code, _, err = samestep("train", "c.yaml")
    assert code == 2 and err.startswith("error: ") and "c.yaml" in err and "Traceback" not in err
    assert launched[1] == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["train", "t.py", "--shards", "4"], "--shards 4 was given for --mode fast, which has none"),
        (["train", "t.py", "--mode", "bitwise", "-g", "9"], "--gpus 9 was asked for with --shards 8"),
        (["train", "t.py", "--mode", "bitwise", "-g", "2:4", "--shards", "3"], "a rank would have no shard"),
        (["train", "t.py", "--gpus", "4:2"], "MIN must not be above MAX"),
        (["train", "t.py", "--gpus", "0:2"], "at least 1 rank is needed"),
        (["train", "t.py", "--gpus", "2:"], "neither a number of ranks nor MIN:MAX"),
        (["train", "t.py", "--gpus", "-2"], "Invalid value"),
        (["train", "t.py", "--requeue-exit-code", "256"], "Invalid value"),
        (["train", "nowhere.py:task"], "There is no file nowhere.py"),
        (["predict", "nowhere.yaml", "--checkpoint", "."], "There is no file nowhere.yaml"),
        (["train", "t.py", "--resume"], "name its folder with --out"),
        (["train", "t.py", "--resume", "--out", "none"], "holds no run"),
        (["train", "--gpus", "2", "--", "bash", "x.sh"], "only Python can be run"),
        (["train", "--set", "a=1", "--", "python", "x.py"], "is not a file"),
        (["evaluate", "t.py", "--checkpoint", "none"], "checkpoint none was asked for"),
        (["demo", "--gpus", "1,2,3"], "two world sizes"),
        (["train", "t.py", "--out", "/proc/x/y"], "cannot be written"),
        (["train", "t.py", "--gpus", "0"], "Invalid value"),
        (["train", "t.py", "--mode", "slow"], "Invalid value"),
        (["train"], "Missing argument"),
        (["fly"], "No such command"),
    ],
)
def test_what_cannot_be_answered_is_said_with_exit_code_2(samestep, words, reason):
    code, out, err = samestep(*words)
    assert (code, out) == (2, "") and reason in " ".join(err.split()) and "Traceback" not in err


@pytest.mark.parametrize(
    "words",
    [["train", "nowhere.py"], ["verify", "nowhere.py"], ["scale", "nowhere.py"], ["advise", "nowhere.csv"],
     ["report", "nowhere"], ["jobs", "nowhere"]],
)  # fmt: skip
def test_for_machines_a_refusal_is_an_object(samestep, words):
    code, out, err = samestep(*words, "--json")
    assert code == 2
    sentence = json.loads(out)["error"]
    assert "nowhere" in sentence and sentence.split()[0] in err
    # the word of a script is not ours
    code, out, _ = samestep("train", "--out", "none", "--resume", "--", "python", "x.py", "--json")
    assert (code, out) == (2, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "t.py", "--gpus", "0"], "Invalid value for '--gpus'"),
        (["advise", "--bogus"], "No such option: --bogus"),
        (["verify", "t.py", "--steps", "many"], "Invalid value for '--steps'"),
        (["scale"], "Missing argument"),
    ],
)
def test_for_machines_wrong_words_are_an_object_too(samestep, words, said):
    code, out, err = samestep(*words, "--json")
    assert code == 2
    assert said in json.loads(out)["error"] and f"See `samestep {words[0]} --help`." in err
    assert len(err.strip().splitlines()) == 1


def test_a_finished_run_is_not_overwritten(samestep, tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "job.json").write_text("{}")
    (tmp_path / "o" / "result.json").write_text('{"status": "finished"}')
    code, _, err = samestep("train", "t.py", "--out", "o")
    assert code == 2 and "holds a run already" in err and "--resume" in err


def test_a_port_in_use(samestep):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = samestep("train", "t.py", "--port", port)
    assert code == 2 and f"port {port}, which cannot be used" in err


def test_limits_are_passed_on(samestep, launched):
    samestep("train", "t.py", "--gpus", "2:4", "--restarts", 3, "--out", "a")
    assert launched[0].limits == Limits(least=2, most=4, restarts=3)
    samestep("train", "t.py", "--gpus", 4, "--out", "b")
    assert launched[0].limits == Limits(least=4, most=4, restarts=None)


def test_bitwise_is_remembered_by_the_run(samestep, launched, tmp_path):
    samestep("train", "t.py", "--mode", "bitwise", "--allow-drift", "--gpus", 2, "--out", "o")
    job = launched[1][0][0]
    assert (job.mode, job.shards, job.allow_drift) == ("bitwise", 8, True)
    assert launched[0].threads is None
    folder = tmp_path / "r"
    folder.mkdir()
    job.write(folder)
    (folder / "record.json").write_text('{"threads": 3}')
    launched[0].is_resumed = True
    samestep("train", "t.py", "--resume", "--out", "r", "--gpus", 3)
    again = launched[1][1][0]
    assert (again.mode, again.shards, again.allow_drift) == ("bitwise", 8, True)
    assert launched[0].threads == 3
    samestep("train", "t.py", "--resume", "--out", "r", "--shards", 4, "--threads", 1)
    assert (launched[1][2][0].shards, launched[0].threads) == (4, 1)
    # the threads of a fast run are a matter of the machine that it goes on with
    samestep("train", "t.py", "--resume", "--out", "r", "--mode", "fast")
    assert (launched[1][3][0].shards, launched[0].threads) == (None, None)


def test_a_finished_run_that_is_resumed_says_so_and_prints_its_digest(samestep, launched, tmp_path):
    samestep("train", "t.py", "--out", "o")
    Job(command="train", target="t.py").write(tmp_path / "o")
    launched[0].is_resumed = True
    code, out, err = samestep("train", "t.py", "--resume", "--out", "o")
    assert (code, out) == (0, "ab12\n")
    assert "the run was finished already, at step 5: nothing to do" in err
    (tmp_path / "o" / "result.json").write_text('{"status": "stopped", "steps": 5}')
    assert "finished already" not in samestep("train", "t.py", "--resume", "--out", "o")[2]


@pytest.mark.parametrize(
    ("status", "stopped_by", "code"),
    [
        ("finished", None, 0),
        ("finished", signal.SIGTERM, 0),
        ("stopped", None, 1),
        ("stopped", signal.SIGTERM, 75),
        ("stopped", signal.SIGUSR1, 75),
        ("stopped", signal.SIGINT, 130),
        ("failed", signal.SIGTERM, 2),
    ],
)
def test_exit_codes_say_how_it_ended(samestep, monkeypatch, tmp_path, status, stopped_by, code):
    monkeypatch.delenv("_CONDOR_JOB_AD", raising=False)
    monkeypatch.delenv("_CONDOR_SCRATCH_DIR", raising=False)
    outcome = Outcome(status=status, result={"status": status}, out=tmp_path, stopped_by=stopped_by)
    monkeypatch.setattr("samestep.cli.running.launch", lambda *a, **k: outcome)
    assert samestep("train", "task.py")[0] == code
    again = samestep("train", "task.py", "--requeue-exit-code", 99)[0]
    assert again == (99 if code == 75 else code)


def test_evaluate_and_predict_pass_on_the_checkpoint(samestep, launched, tmp_path):
    (tmp_path / "ck").mkdir()
    assert samestep("evaluate", "t.py", "--checkpoint", "ck", "--data", "test")[0] == 0
    assert samestep("predict", "t.py", "--checkpoint", "ck", "-o", "p", "-g", 3)[0] == 0
    (first, one, _), (second, three, out) = launched[1]
    assert (first.command, first.data, first.checkpoint, one) == ("evaluate", "test", str(tmp_path / "ck"), 1)
    assert (second.command, three, str(out)) == ("predict", 3, "p")


def test_the_demo_says_that_both_took_the_same_steps(samestep, launched):
    launched[0].gap = 1e-7
    code, out, err = samestep("demo", "--quick", "--out", "d")
    assert (code, out) == (0, "equal\n") and "Both runs took the same 5 steps" in err
    assert [job[1] for job in launched[1]] == [1, 2]
    assert err.count("no GPU found") == 1


def test_the_demo_says_when_they_did_not(samestep, launched):
    launched[0].gap = 1e-3
    code, out, _ = samestep("demo", "--quick", "--out", "d", "--json")
    assert code == 1 and json.loads(out)["verdict"] == "different"
    assert samestep("demo", "--quick", "--out", "e")[1] == "different\n"


def test_the_demo_goes_on_to_speed_advice_and_a_page(tmp_path):
    command = [sys.executable, "-m", "samestep", "demo", "--json", "--out", str(tmp_path / "d")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] in ("same", "equal") and answer["worlds"] == [1, 2]
    assert answer["faster"] in ("faster", "not faster", "too close to call")
    assert answer["recommended_gpus"] >= 1
    page = Path(answer["report"]).read_text()
    assert f"Ask for {answer['recommended_gpus']} GPU" in page
    for command in ("train samestep.demo:digits --gpus 2", "scale samestep.demo:digits", "advise", "report"):
        assert f"$ samestep {command}" in done.stderr


def test_the_demo_is_over_when_its_sweep_is_interrupted(samestep, launched, monkeypatch):
    monkeypatch.setattr("samestep.cli.demo.app", lambda words, standalone_mode: 130)
    code, out, err = samestep("demo", "--out", "d")
    assert (code, out) == (130, "") and "samestep advise" not in err
