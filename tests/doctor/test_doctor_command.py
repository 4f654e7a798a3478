"""`samestep doctor`, alone and as several processes of one launcher, on this machine."""

import json
import os
import socket
import subprocess
import sys

import pytest
import yaml

from samestep.advise.cluster import Cluster

DOCTOR = [sys.executable, "-m", "samestep", "doctor"]
ENV = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(count, *words, **env):
    """The doctor in several processes, with the variables that torchrun and others set."""
    port = free_port()
    return [
        subprocess.Popen(
            [*DOCTOR, *(word.replace("{index}", str(index)) for word in words)],
            env={
                **os.environ, **ENV, "RANK": str(index), "WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **env,
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index in range(count)
    ]  # fmt: skip


def ends(processes):
    said = [process.communicate(timeout=170) for process in processes]
    return [process.returncode for process in processes], said


def test_alone_it_tells_what_the_machine_has_and_how_fast_ranks_exchange(tmp_path):
    done = subprocess.run(
        [*DOCTOR, "--gpus", "2", "--json", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=170, env={**os.environ, **ENV},
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["is_fine"]) == ((0, True) if not answer["findings"] else (1, False))
    (node,) = answer["nodes"]
    assert node["ranks"] == 2 and node["devices"] == ["cpu", "cpu"] and node["seen_s"] is not None
    assert node["versions"]["samestep"] and node["versions"]["torch"].startswith("2.")
    assert answer["links"] == []
    assert {row["name"] for row in answer["exchanges"]} == {"sum", "slices", "inside"}
    assert all(row["bytes_per_s"] > 0 for row in answer["exchanges"])
    assert answer["exchange_latency_s"] > 0
    assert json.loads((tmp_path / "doctor.json").read_text())["exchanges"] == answer["exchanges"]
    cluster = Cluster.model_validate(yaml.safe_load((tmp_path / "cluster.yaml").read_text()))
    assert cluster.gpus_per_node == 2 and cluster.between is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yaml", "doctor.json"]


def test_below_torchrun_the_first_process_answers_for_all():
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}",
         "-m", "samestep", "doctor", "--json"],
        capture_output=True, text=True, timeout=170, env={**os.environ, **ENV},
    )  # fmt: skip
    answer = json.loads(done.stdout)
    (node,) = answer["nodes"]
    assert node["ranks"] == 2 and "under torchrun" in done.stderr, done.stderr
    assert {row["name"] for row in answer["exchanges"]} >= {"sum", "slices"}
    assert (done.returncode == 0) == (not answer["findings"]), answer["findings"]


def test_two_processes_with_folders_of_their_own_and_a_wrong_interface(tmp_path):
    (tmp_path / "run-0").mkdir()
    codes, said = ends(start(2, "--json", "--out", str(tmp_path / "run-0"), GLOO_SOCKET_IFNAME="none0"))
    answer = json.loads(said[0][0])
    assert codes == [1, 0], said
    assert said[1][0] == "", "only the first answers"
    assert [finding["cause"] for finding in answer["findings"]] == ["interface-unusable", "exchange-failed"]
    assert "none0" in answer["findings"][1]["message"], answer["findings"]
    assert answer["exchanges"] == [] and answer["cluster"] is None


def test_who_does_not_come_is_named_by_both_sides_before_torch_is_loaded():
    first, second = start(2, "--wait", "2")
    second.kill()
    second.communicate()
    said = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "finding node-unreachable: Process 1 of 2 did not come to 127.0.0.1 within 2 s." in said[0]
    first, second = start(2, "--wait", "2")
    first.kill()
    first.communicate()
    said = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "cannot reach the first at 127.0.0.1:" in said[1] and "nobody listens there" in said[1]


@pytest.mark.parametrize(
    ("words", "env", "match"),
    [
        (["--gpus", "3"], {"RANK": "0", "WORLD_SIZE": "2"}, "ask for a multiple of 2"),
        ([], {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        (["--out", "/proc/none"], {}, "cannot be written to"),
    ],
)
def test_what_cannot_be_examined_is_refused(words, env, match):
    done = subprocess.run(
        [*DOCTOR, *words], env={**os.environ, **ENV, **env}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2 and match in done.stderr, done.stderr
