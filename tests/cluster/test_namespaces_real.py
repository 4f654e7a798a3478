"""Two machines with a shaped link: the doctor's figures, the same bits, a link that is cut, a projection.

`verify` compares runs on one machine; between machines, what both wrote down is compared: digests and steps.
"""

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time

import pytest

from samestep.launch.hearing import AFTER_S
from samestep.record import Record
from samestep.report.compare import compare

pytestmark = [pytest.mark.quiet, pytest.mark.timeout(600)]

GBIT, MBIT_100 = 1e9, 1e8
SAMESTEP = [sys.executable, "-m", "samestep"]
ENV = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
# the last step ends long after a link that is cut at the third is missed, and after it is heard again
TRAIN = ["train", "samestep.demo:digits", "--mode", "bitwise", "--threads", "1", "--set", "epochs=16"]
STEPS = 384
WIDE = """\
import samestep
import torch
from torch import nn


def examples():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1024, 256, generator=generator)
    return torch.utils.data.TensorDataset(inputs, torch.randint(0, 10, (1024,), generator=generator))


task = samestep.Task(
    model=lambda: nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    ),
    train_data=examples,
    loss=samestep.supervised(nn.CrossEntropyLoss()),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    batch_size=64,
    steps=30,
)
"""
PING_PONG = """\
import os, socket, sys, time
address, role, core = sys.argv[1:]
os.sched_setaffinity(0, {int(core)})
if role == "answer":
    with socket.create_server((address, 4711)) as listener:
        print("ready", flush=True)
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while byte := connection.recv(1):
            connection.sendall(byte)
else:
    connection = socket.create_connection((address, 4711), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(10):
        trips = []
        for _ in range(200):
            began = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            trips.append(time.perf_counter() - began)
        print(min(trips) / 2)
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The folder of one undisturbed rank on this machine."""
    out = tmp_path_factory.mktemp("one") / "run"
    subprocess.run(
        [*SAMESTEP, *TRAIN, "--out", str(out)], env={**os.environ, **ENV}, check=True, capture_output=True,
        timeout=150,
    )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def doctors(nodes, tmp_path_factory):
    """The doctor's answer on both nodes at each rate, with the folder that it is kept in."""
    found = {}
    for rate in (GBIT, MBIT_100):
        nodes.shape(rate)
        out = tmp_path_factory.mktemp("doctor")
        codes, said = ends(nodes.start_on_both([*SAMESTEP, "doctor", "--json", "--out", str(out)], ENV))
        assert codes == [0, 0], said
        found[rate] = json.loads(said[0][0]), out
    return found


def ends(processes, timeout=200):
    said = [process.communicate(timeout=timeout) for process in processes]
    return [process.returncode for process in processes], said


def until(is_so, seconds=120):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def step_of(out):
    try:
        return json.loads((out / "progress.json").read_text())["step"]
    except (OSError, ValueError):
        return 0


def digest_of(out):
    return json.loads((out / "result.json").read_text())["digest"]


def latencies(nodes):
    """Half of the shortest round trip of one byte in each of several rounds, by a program of a few lines.

    Both nodes have the cores of this machine, and to wake another core takes several times as long as to go
    on with the same one (7 µs and 13 to 26 were seen). Which it is for the doctor is the system's choice, so
    that both count.
    """
    address, cores = nodes.seat(0)["MASTER_ADDR"], sorted(os.sched_getaffinity(0))
    found = []
    for core in (cores[0], cores[-1]):
        words = [sys.executable, "-c", PING_PONG, address]
        answering = nodes.start(0, [*words, "answer", str(cores[0])])
        assert answering.stdout.readline() == "ready\n"
        asking = nodes.start(1, [*words, "ask", str(core)])
        said, errors = asking.communicate(timeout=30)
        answering.communicate(timeout=30)
        assert asking.returncode == 0, errors
        found += [float(line) for line in said.split()]
    return found


@pytest.mark.parametrize("rate", [GBIT, MBIT_100])
def test_the_doctor_finds_the_rate_that_was_set_and_the_latency(nodes, doctors, rate):
    answer, _ = doctors[rate]
    (link,) = answer["links"]
    for way in ("there_bytes_per_s", "back_bytes_per_s"):
        assert abs(8 * link["details"][way] / rate - 1) < 0.1, answer
    # the shortest of many trips is what the system needs at least; a busy machine may double it
    raw = latencies(nodes)
    assert min(raw) / 2 < link["latency_s"] < 2 * max(raw), (raw, link)
    assert abs(link["clock_offset_s"]) <= link["clock_bound_s"], "both have the clock of this machine"
    first, second = answer["nodes"]
    assert (first["interface"], first["address"]) == ("link0", "10.201.7.1")
    assert (second["interface"], second["address"]) == ("link0", "10.201.7.2")
    assert None not in (first["seen_s"], second["seen_s"])
    # what ranks exchange goes over the link, so none is faster than it was set to be
    assert all(0 < 8 * row["bytes_per_s"] <= rate for row in answer["exchanges"]), answer["exchanges"]


def test_a_node_that_cannot_be_reached_is_named_in_seconds_by_both(nodes):
    nodes.cut()
    try:
        began = time.monotonic()
        codes, said = ends(nodes.start_on_both([*SAMESTEP, "doctor", "--wait", "3"], ENV))
    finally:
        nodes.mend()
    assert codes == [1, 1]
    assert "Process 1 of 2 did not come to 10.201.7.1 within 3 s" in said[0][0]
    assert "cannot reach the first at 10.201.7.1:" in said[1][1]
    assert time.monotonic() - began < 60, "starting Python twice is most of it"


def test_a_cut_link_is_named_and_the_run_ends_with_the_bits_of_one_rank(nodes, reference, tmp_path):
    nodes.shape(GBIT)
    out = tmp_path / "run"
    processes = nodes.start_on_both([*SAMESTEP, *TRAIN, "--json", "--out", str(out)], ENV)
    until(lambda: step_of(out) >= 3)
    nodes.cut()
    began = time.monotonic()
    findings = out / "findings.jsonl"
    try:
        until(lambda: findings.exists() and "node-silent" in findings.read_text(), 60)
        named_s = time.monotonic() - began
        at = step_of(out)
    finally:
        nodes.mend()
    # a beat is at most half a second old when the link is cut; the rest is the machine's own slowness
    assert named_s < AFTER_S + 5.0
    assert at < STEPS, "the link was cut in the middle of the run"
    codes, said = ends(processes)
    assert codes == [0, 0], said
    told = said[0][1]
    silence = r"Nothing has been heard of .* \(10\.201\.7\.2\), which has rank 1, for \d+ s"
    assert re.search(f"{silence}: the interface link0 here is down", told), told
    assert "(10.201.7.2) is heard again after" in told
    assert "goes on after" not in told, "of a stall that was not told, the end is not told either"
    assert digest_of(out) == digest_of(reference)
    verdict = compare(Record.read(reference).steps(), Record.read(out).steps())
    assert (verdict.verdict, verdict.num_steps) == ("same", STEPS)


def test_a_link_that_stays_cut_ends_the_run_which_resumes_to_the_same_bits(nodes, reference, tmp_path):
    nodes.shape(MBIT_100)
    out = tmp_path / "run"
    words = [*SAMESTEP, *TRAIN, "--timeout", "12", "--out", str(out)]
    processes = nodes.start_on_both([*words, "--set", "checkpoint_every=2"], ENV)
    until(lambda: step_of(out) >= 5)
    nodes.cut()
    try:
        began = time.monotonic()
        said = processes[0].communicate(timeout=90)[1]
        took_s = time.monotonic() - began
        processes[1].communicate(timeout=90)
    finally:
        nodes.mend()
    assert processes[0].returncode == 2
    assert "Nothing has been heard of" in said and "lost the other ranks" in said, said
    assert took_s < 60
    codes, said = ends(nodes.start_on_both([*words, "--resume"], ENV, port=free_port()))
    assert codes == [0, 0], said
    assert digest_of(out) == digest_of(reference)
    events = [json.loads(line)["event"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert "resumed" in events


@pytest.fixture(scope="module")
def sweep(nodes, tmp_path_factory):
    """A task with five megabytes of gradients, and a sweep of it on one node: one rank, two side by side."""
    folder = tmp_path_factory.mktemp("wide")
    (folder / "wide.py").write_text(WIDE)
    words = [
        *SAMESTEP,
        "scale",
        str(folder / "wide.py"),
        "--gpus",
        "1,2",
        "--budget",
        "15s",
        "--threads",
        "1",
    ]
    measuring = nodes.start(0, [*words, "--out", str(folder / "sweep")], ENV)
    codes, said = ends([measuring])
    assert codes[0] in (0, 1), said
    return folder


@pytest.mark.parametrize("rate", [GBIT, MBIT_100])
def test_two_nodes_take_the_step_that_is_projected_from_one(
    nodes, doctors, sweep, tmp_path, rate, record_property
):
    spec = doctors[rate][1] / "cluster.yaml"
    done = subprocess.run(
        [*SAMESTEP, "advise", str(sweep / "sweep"), "--cluster", str(spec), "--json"],
        capture_output=True, text=True, timeout=100, env={**os.environ, **ENV},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = [row for row in json.loads(done.stdout)["cluster"]["rows"] if row["gpus"] == 2]
    assert (row["kind"], row["nodes"]) == ("simulated", 2)
    nodes.shape(rate)
    out = tmp_path / "run"
    words = [*SAMESTEP, "train", str(sweep / "wide.py"), "--threads", "1", "--out", str(out)]
    codes, said = ends(nodes.start_on_both(words, ENV))
    assert codes == [0, 0], said
    assert "Nothing has been heard" not in said[0][1], "the link was whole"
    measured_s = statistics.median([step["step_s"] for step in Record.read(out).steps()][5:])
    for name in ("low_s", "step_s", "high_s"):
        record_property(name, row[name])
    record_property("measured_s", measured_s)
    # the doctor's rate, from which the step is projected, may itself be off by a tenth
    assert 0.9 * row["low_s"] < measured_s < 1.1 * row["high_s"], (row, measured_s)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
