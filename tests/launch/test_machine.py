import socket

import pytest

from samestep.errors import LaunchError
from samestep.launch import machine


def gpus(monkeypatch, tmp_path, present, **env):
    for number in range(present):
        (tmp_path / str(number)).mkdir(exist_ok=True)
    monkeypatch.setattr(machine, "_DRIVER", tmp_path)
    return machine.count_gpus(env)


@pytest.mark.parametrize(
    ("visible", "count"),
    [("0,1", 2), ("3", 1), ("", 0), ("-1", 0), ("0,-1,1", 1), ("0,9,1", 1), ("GPU-ab,GPU-cd", 2), ("0,0", 1)],
)
def test_visible_gpus_are_counted_as_cuda_does(monkeypatch, tmp_path, visible, count):
    assert gpus(monkeypatch, tmp_path, 4, CUDA_VISIBLE_DEVICES=visible) == count


def test_all_gpus_are_visible_unless_said(monkeypatch, tmp_path):
    assert gpus(monkeypatch, tmp_path, 4) == 4


def test_more_ranks_than_gpus_are_refused_with_both_numbers():
    with pytest.raises(LaunchError, match=r"3 ranks .* has 2 GPUs"):
        machine.check_ranks(3, 2)
    machine.check_ranks(2, 2)
    machine.check_ranks(64, 0)


def test_threads_are_shared_out_unless_the_user_said():
    cores = machine.threads_per_rank(1, None, {})
    assert machine.threads_per_rank(10_000, None, {}) == 1
    assert machine.threads_per_rank(cores, None, {}) == 1
    assert machine.threads_per_rank(2, None, {"OMP_NUM_THREADS": "7"}) == 7
    assert machine.threads_per_rank(2, 3, {"OMP_NUM_THREADS": "7"}) == 3


def test_a_port_in_use_is_refused_by_name():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port}, which cannot be used"):
            machine.free_port(port)
    assert machine.free_port(port) == port
    assert machine.free_port() > 0
    with pytest.raises(LaunchError, match="70000"):
        machine.free_port(70_000)


def test_schedulers_are_known_by_what_they_set():
    assert machine.requeue_code({}) == 75
    assert (
        machine.requeue_code({"_CONDOR_JOB_AD": "x"})
        == machine.requeue_code({"_CONDOR_SCRATCH_DIR": "x"})
        == 85
    )
