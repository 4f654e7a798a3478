"""Ranks that are forked are observed to do the same as ranks that are started."""

import dataclasses
import json

from runner import NUM_WARM, Fork, ForkRunner

from samestep.launch.job import Job
from samestep.launch.watched import Watched
from samestep.observations import Observations, encode
from samestep.observed import End, Machine, Start, Step

SCRIPT = """
import random
import numpy, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4, generator=torch.Generator().manual_seed(1)))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler, num_workers=1)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), 0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        loss = torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print("epoch", epoch, float(loss))
if FAULT:
    raise ValueError("bad")
"""
DRAWS = "import random, numpy\nprint(random.random(), numpy.random.rand(), hash('a'))"


def seen(folder, rank):
    """All rows, without times, processes and what no seed was set for."""
    rows = []
    for row in Observations.read(folder).rows(rank):
        if isinstance(row, Start):
            row = dataclasses.replace(row, pid=0, time=0.0)
        elif isinstance(row, Step):
            row = dataclasses.replace(row, phases_s={})
        elif isinstance(row, End):
            row = dataclasses.replace(row, seconds=0.0, probe_s=0.0, traceback="")
        rows.append(_without(json.loads(encode(row)), ("python", "numpy")))
    return rows


def _without(value, names):
    if isinstance(value, dict):
        return {key: _without(item, names) for key, item in value.items() if key not in names}
    return [_without(item, names) for item in value] if isinstance(value, list) else value


def test_both_see_the_same(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("FAULT", "dist.get_rank() == 1"))
    forked = ForkRunner(script, out=tmp_path / "forked")("run", 2)
    watched = Watched(job=Job(command="script", script=(str(script),)), threads=1)
    started = watched.run(tmp_path / "started/run", 2)
    assert forked.status == started.status == "failed" and forked.failure == started.failure
    for rank in (0, 1):
        ours, theirs = seen(tmp_path / "forked/run", rank), seen(tmp_path / "started/run", rank)
        assert len(ours) > 100 and ours == theirs
        output = [tmp_path / kind / f"run/ranks/0000{rank}/stdout.log" for kind in ("forked", "started")]
        assert output[0].read_bytes() == output[1].read_bytes() != b""
    assert any(isinstance(row, Machine) for row in Observations.read(tmp_path / "forked/run").rows(0))


def test_forked_ranks_draw_and_hash_each_for_themselves(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(DRAWS)
    runner = ForkRunner(script, out=tmp_path)
    said = []
    for name in ("one", "two"):
        runner(name, 2)
        said += [(tmp_path / name / f"ranks/0000{rank}/stdout.log").read_text().split() for rank in (0, 1)]
    firsts, seconds, hashes = zip(*said, strict=True)
    assert len(set(firsts)) == len(set(seconds)) == 4
    assert len({hashes[0], hashes[1]}) == len({hashes[2], hashes[3]}) == 2


def test_warm_processes_are_few_and_stay(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['PYTHONHASHSEED'])")
    runner = ForkRunner(script, out=tmp_path)
    for number in range(4):
        runner(f"run-{number}", 3)
    warm = Fork._warm["1"][0]
    runner("more", 3)
    assert warm is Fork._warm["1"][0]
    assert len({log.read_text() for log in tmp_path.glob("*/ranks/*/stdout.log")}) == NUM_WARM
