"""Ctrl-C on the real command line: all ranks gone within 5 s, and a run folder that goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "samestep", "train", "samestep.demo:digits", "--json"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_interrupted_and_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        [*COMMAND, "--gpus", "2", "--out", str(out), "--set", "epochs=2000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not list(out.glob("checkpoints/step-*")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pids = [int(path.read_text()) for path in out.glob("ranks/*/pid")]
    assert len(pids) == 2
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    process.communicate(timeout=30)
    seconds = time.monotonic() - began
    assert process.returncode == 130
    assert seconds < 5
    assert not any(alive(pid) for pid in pids)
    stopped = json.loads((out / "result.json").read_text())
    assert stopped["status"] == "stopped"
    epochs = stopped["steps"] // 24 + 2
    resumed = subprocess.run(
        [*COMMAND, "--gpus", "1", "--out", str(out), "--resume", "--set", f"epochs={epochs}"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    answer = json.loads(resumed.stdout)
    assert answer["steps"] == 24 * epochs
    assert answer["examples"] == 1500 * epochs
    steps = [json.loads(line)["step"] for line in (out / "steps.jsonl").read_text().splitlines()]
    assert stopped["steps"] + 1 in steps, "it went on where it had stopped"
