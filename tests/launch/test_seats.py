"""Several launchers of one run: each starts its part of the ranks, the first accounts for all."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from samestep.launch.job import Job
from samestep.launch.limits import Limits
from samestep.launch.local import attend
from samestep.launch.machine import address_at, gpus_at, interface_at
from samestep.launcher import Seat

TRAIN = [
    sys.executable,
    "-m",
    "samestep",
    "train",
    "samestep.demo:digits",
    "--threads",
    "1",
    "--set",
    "epochs=1",
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(count, words, **env):
    """`samestep train` in several processes, with the variables that torchrun and others set."""
    port = free_port()
    processes = []
    for index in range(count):
        own = {
            "RANK": str(index),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        processes.append(
            subprocess.Popen(
                [*TRAIN, *(word.replace("{index}", str(index)) for word in words)],
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **own, **env},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    return processes


def ends(processes):
    said = [process.communicate(timeout=150) for process in processes]
    return [process.returncode for process in processes], said


def test_two_launchers_of_two_ranks_each_train_the_bits_of_one_rank(tmp_path):
    out = tmp_path / "run"
    words = ["--gpus", "4", "--mode", "bitwise", "--json", "--out", str(out)]
    codes, said = ends(start(2, words))
    assert codes == [0, 0], said
    answer = json.loads(said[0][0])
    assert said[1][0] == "", "only the first answers"
    assert "process 0 of 2 under environment: 4 ranks meet at" in said[0][1]
    alone = subprocess.run(
        [*TRAIN, "--mode", "bitwise", "--json", "--out", str(tmp_path / "one")],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert answer["digest"] == json.loads(alone.stdout)["digest"]
    rolls = [
        json.loads(line)
        for path in sorted((out / "agent").glob("roll*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    seats = {row["rank"]: row["seat"] for row in rolls if row["entry"] == "Started"}
    assert seats == {0: 0, 1: 0, 2: 1, 3: 1}, "ranks are in the order of seats"


def test_a_folder_that_is_not_shared_is_named(tmp_path):
    codes, said = ends(start(2, ["--out", str(tmp_path / "run-{index}")]))
    assert codes == [2, 2]
    assert "is not one folder for all machines" in said[0][1], said
    assert "is not one folder for all machines" in said[1][1], said


@pytest.mark.parametrize("code", [0, 1])
def test_what_torch_says_elsewhere_is_told_if_that_ended_badly(tmp_path, monkeypatch, capfd, code):
    """A run that ended well does not end with the traces of agents that the first did not wait for."""
    talk = [sys.executable, "-c", f"print('recvValue failed'); raise SystemExit({code})"]
    monkeypatch.setattr("samestep.launch.agent.command_of", lambda **_: talk)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    is_good = attend(
        Job(command="train", target="x"),
        gpus=Limits(most=2),
        out=tmp_path,
        seat=replace(seat(1), port=free_port()),
    )
    assert is_good == (code == 0)
    assert ("recvValue failed" in capfd.readouterr().err) == (code == 1)


def test_a_failure_elsewhere_is_told_by_the_first(tmp_path):
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, samestep, torch.distributed\nsamestep.init()\n"
        "if os.environ['GROUP_RANK'] == '1':\n    raise ValueError('no such shelf')\n"
        "torch.distributed.barrier()\n"
    )
    words = [
        sys.executable,
        "-m",
        "samestep",
        "train",
        "--out",
        str(tmp_path / "run"),
        "--",
        "python",
        str(script),
    ]
    port = free_port()
    processes = [
        subprocess.Popen(
            words,
            env={
                **os.environ, "CUDA_VISIBLE_DEVICES": "", "RANK": str(index), "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index in range(2)
    ]  # fmt: skip
    codes, said = ends(processes)
    assert codes[0] == 2
    assert "no such shelf" in said[0][1] and "Rank 1" in said[0][1], said


@pytest.mark.parametrize(
    ("words", "match"),
    [(["--gpus", "3", "--out", "run"], "cannot have equally many"), ([], "Name one for all with --out")],
)
def test_what_cannot_be_shared_out_is_refused(tmp_path, words, match):
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    done = subprocess.run(
        [*TRAIN, *words], cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and match in done.stderr


def seat(index=0, count=2, local_index=0, local_count=2, address="127.0.0.1"):
    return Seat(
        launcher="x", index=index, count=count, local_index=local_index, local_count=local_count,
        address=address, port=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "ranks", "at", "expected"),
    [
        (["0", "1", "2", "3"], 2, seat(1, local_index=1), ["2", "3"]),
        (["0", "1", "2", "3"], 2, seat(1, local_count=1), ["0", "1"]),
        (["5"], 1, seat(1, local_index=1), ["5"]),
        ([], 2, seat(), []),
    ],
    ids=["shared", "a machine each", "one each already", "none"],
)
def test_gpus_of_a_machine_are_shared_out_among_its_seats(monkeypatch, seen, ranks, at, expected):
    monkeypatch.setattr("samestep.launch.machine.visible_gpus", lambda env: seen)
    assert gpus_at(at, ranks) == expected


def test_the_way_to_others_is_the_interface_that_leads_there():
    assert interface_at(seat()) == "lo"
    assert address_at(seat()) == "127.0.0.1" and address_at(seat(1)) == "127.0.0.1"
    assert interface_at(seat(address="192.0.2.7")) != "lo"
