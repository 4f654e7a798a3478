"""Gradients as a look on real ranks sees them → the norms that plain torch has, and the noise scale."""

import inspect
import math
import sys
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from samestep.advise.noise import StepNorms
from samestep.launch.job import Job
from samestep.launch.watched import Watched
from samestep.observations import Observations
from samestep.observed import Gradient
from samestep.scale.noise import noise_of_look, norms_of_step
from samestep.verify.trace import Trace

sys.path.append(str(Path(__file__).parent.parent / "zoo"))
from runner import ForkRunner

NUM_STEPS = 12
LR = 0.02


def examples():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(96, 6, generator=draw)
    return x, x.sum(1, keepdim=True) + torch.randn(96, 1, generator=draw)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


COMMON = "import torch\nfrom torch import nn\n" + inspect.getsource(examples) + inspect.getsource(model)
SCRIPT = (
    COMMON
    + """
import contextlib, sys
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

way = sys.argv[1]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
cuts = {"uneven": [0, 6, 8], "alone": [0, 8]}.get(way, [0, 4, 8])
mine = range(8) if way == "same" else range(cuts[rank], cuts[rank + 1])
count = 2 if way in ("accumulated", "exchanged") else len(mine)
batches = [[8 * s + i for i in mine[k : k + count]] for s in range(12) for k in range(0, len(mine), count)]
loader = DataLoader(TensorDataset(*examples()), batch_sampler=batches)
net = DistributedDataParallel(model()) if size > 1 else model()
optimizer = torch.optim.SGD(net.parameters(), 0.02)
other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
turns = len(mine) // count
for number, (x, y) in enumerate(loader):
    is_last = number % turns == turns - 1
    with contextlib.nullcontext() if is_last or way == "exchanged" else net.no_sync():
        loss = nn.functional.mse_loss(net(x), y, reduction="sum" if way == "sums" else "mean")
        (loss / (turns * (len(mine) if way == "sums" else 1))).backward()
    if not is_last:
        continue
    if way == "clipped":
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    if way == "decayed":
        for parameter in net.parameters():
            parameter.grad += parameter.detach()
    optimizer.step()
    optimizer.zero_grad()
    if way == "several" and number < 6:
        other.step()
"""
)
TASK = (
    COMMON
    + """
import samestep
from torch.utils.data import TensorDataset

def loss(model, batch):
    x, y = batch
    return samestep.Loss(nn.functional.mse_loss(model(x), y, reduction="sum"), len(y))

task = samestep.Task(
    model=model, train_data=lambda: TensorDataset(*examples()), loss=loss, batch_size=10, epochs=1,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02), clip_norm=2.0,
)
"""
)


def by_torch(cuts_of_steps, weights_of, limit=None):
    """Norms of each step's parts, of the examples named, and of the whole, with nothing but torch."""
    x, y = examples()
    net = model()
    parameters = list(net.parameters())
    found = []
    for parts in cuts_of_steps:
        gradients = []
        for part in parts:
            loss = nn.functional.mse_loss(net(x[part]), y[part])
            gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).double())
        counts = [len(part) for part in parts]
        whole = sum(w * g for w, g in zip(weights_of(counts), gradients, strict=True))
        found.append((counts, [float(g @ g) for g in gradients], float(whole @ whole)))
        if limit is not None:
            whole = whole * min(1.0, limit / float(whole.norm()))
        with torch.no_grad():
            start = 0
            for parameter in parameters:
                step = whole[start : start + parameter.numel()].reshape(parameter.shape)
                parameter -= LR * step.float()
                start += parameter.numel()
    return found


def alike(counts):
    return [1 / len(counts)] * len(counts)


def by_examples(counts):
    return [count / sum(counts) for count in counts]


def check(trace, truth, first=1):
    """The norms of all steps from `first` on are the truth, to a few roundings of float32."""
    for number, (counts, squares, whole) in enumerate(truth[first - 1 :], start=first):
        norms = norms_of_step(trace, number)
        assert isinstance(norms, StepNorms), norms
        assert list(norms.num_examples) == counts
        assert norms.square_norms == pytest.approx(squares, rel=1e-4)
        assert norms.whole_square_norm == pytest.approx(whole, rel=1e-4)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("noise") / "script.py"
    path.write_text(SCRIPT)
    return path


@cache
def look(script, way, world_size=2):
    run = ForkRunner(script, (way,), out=script.parent / way)("look", world_size)
    assert run.status == "finished", run.failure
    return Trace(Observations.read(run.folder))


def ranges(cuts):
    return [[list(range(8 * s + a, 8 * s + b)) for a, b in pairwise(cuts)] for s in range(NUM_STEPS)]


class TestScript:
    @pytest.mark.parametrize(
        ("way", "cuts", "limit"),
        [("plain", (0, 4, 8), None), ("accumulated", (0, 4, 8), None), ("uneven", (0, 6, 8), None),
         ("clipped", (0, 4, 8), 0.05), ("sums", (0, 4, 8), None)],
    )  # fmt: skip
    def test_norms_are_those_of_plain_torch(self, script, way, cuts, limit):
        trace = look(script, way)
        check(trace, by_torch(ranges(cuts), alike, limit))
        noise = noise_of_look(trace)
        assert noise.num_steps == NUM_STEPS and noise.trace > 0 and noise.low is not None

    def test_another_truth_is_not_met(self, script):
        # the clipped run takes other steps, and the uneven one is cut elsewhere
        with pytest.raises(AssertionError):
            check(look(script, "plain"), by_torch(ranges((0, 4, 8)), alike, 0.05))
        with pytest.raises(AssertionError):
            check(look(script, "plain"), by_torch(ranges((0, 3, 8)), alike))

    @pytest.mark.parametrize(
        ("way", "world_size", "reason"),
        [
            ("exchanged", 2, "between the backward passes"),
            ("same", 2, "the same examples"),
            ("decayed", 2, "no multiple"),
            ("alone", 1, "one rank"),
            ("several", 2, "several optimizers"),
        ],
    )
    def test_what_tells_nothing_of_noise_is_not_used(self, script, way, world_size, reason):
        trace = look(script, way, world_size)
        noise = noise_of_look(trace)
        assert not noise.is_known and noise.num_steps == 0
        every = f"in {trace.num_full} of {trace.num_full} steps"
        assert reason in noise.reason and every in noise.reason and trace.num_full >= NUM_STEPS

    def test_only_gradients_that_were_taken_away_have_parts(self, script):
        seen = look(script, "accumulated").first.steps[2].local.values()
        assert {(g.num_backward, g.parts) for g in seen} == {(2, ())}


class TestTask:
    @pytest.fixture(scope="class")
    def looks(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("noise_task")
        target = folder / "task.py"
        target.write_text(TASK)
        found = {}
        for mode, shards, size in [("fast", None, 2), ("bitwise", 4, 1), ("bitwise", 4, 2)]:
            job = Job(command="train", target=str(target), mode=mode, shards=shards)
            out = folder / f"{mode}-{size}"
            ended = Watched(job=job, threads=1).run(out, size)
            assert ended.status == "finished", ended.failure
            found[mode, size] = Trace(Observations.read(out))
        return found

    @staticmethod
    def batches(trace):
        """The examples of each step, over all ranks."""
        ranks = [[batch.indices for batch in rank.batches] for rank in trace.ranks.values()]
        return [sum(map(list, parts), []) for parts in zip(*ranks, strict=True)]

    @pytest.mark.parametrize(
        ("mode", "size", "num_parts"), [("fast", 2, 2), ("bitwise", 1, 4), ("bitwise", 2, 4)]
    )
    def test_norms_are_those_of_plain_torch(self, looks, mode, size, num_parts):
        trace = looks[mode, size]
        cuts = []
        for batch in self.batches(trace):
            # the last batch has 6 examples instead of 10, and fewer shards, rather than smaller ones
            count = num_parts if mode == "fast" else math.ceil(len(batch) * num_parts / 10)
            size, larger = divmod(len(batch), count)
            ends = [0, *accumulate(size + (i < larger) for i in range(count))]
            cuts.append([batch[a:b] for a, b in pairwise(ends)])
        truth = by_torch(cuts, by_examples, limit=2.0)
        assert mode == "fast" or len(set(truth[1][0])) > 1
        # in bitwise mode a first step is rehearsed, and has more backward passes than shards
        check(trace, truth, first=1 if mode == "fast" else 2)

    def test_shards_say_the_same_on_any_number_of_ranks(self, looks):
        one, two = (noise_of_look(looks["bitwise", size]) for size in (1, 2))
        assert one == two and one.num_steps > 5

    def test_shards_are_written_one_by_one(self, looks):
        (of_step,) = {len(g.parts) for g in looks["bitwise", 1].first.steps[2].local.values()}
        assert of_step == 4
        applied = looks["bitwise", 1].first.steps[2].applied.values()
        assert all(isinstance(g, Gradient) and g.parts == () for g in applied)
        assert {g.parts for g in looks["fast", 2].first.steps[2].local.values()} == {()}
