"""Accelerate, Lightning and transformers, on one rank and on two: what is seen, and what stays the same.

A replay of two ranks' batches on one takes the same steps, as far as rounding goes: so batches, their order,
frozen norms and silenced dropout are what they are said to be, through all that these libraries do.
"""

import pytest
from watching import run, seen

from samestep.experiment import Experiment, pass_key
from samestep.observed import Batch, Call, Gradient, Loader, Pass, State, Step, Trouble

HEAD = """
import hashlib, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x = torch.arange(60.0).reshape(20, 3) / 30 - 1
data = TensorDataset(x, torch.arange(20) % 2)
def net():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
def tell(model):
    bits = b"".join(p.detach().numpy().tobytes() for p in model.state_dict().values())
    print(hashlib.sha256(bits).hexdigest())
"""
ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
torch.manual_seed(3)
config = DataLoaderConfiguration(dispatch_batches="dispatch" in sys.argv or None)
accelerator = Accelerator(cpu=True, dataloader_config=config)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4, shuffle=True)  # made here
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(2):
    for inputs, labels in loader:
        accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
tell(accelerator.unwrap_model(model))
"""
LIGHTNING = """
import logging, warnings
warnings.filterwarnings("ignore")
import lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()
    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
lightning.seed_everything(3, verbose=False)
loader = DataLoader(data, batch_size=4, shuffle=True)  # made here
other = DataLoader(data, batch_size=4)
model, ranks = Model(), int(os.environ.get("WORLD_SIZE", "1"))
off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
lightning.Trainer(
    accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=2, **off
).fit(model, loader, other)
tell(model)
"""
TRANSFORMERS = """
import tempfile
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
set_seed(3)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2))
tokens = torch.randint(0, 32, (20, 8), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": row, "labels": row} for row in tokens]
options = TrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, num_train_epochs=2, logging_strategy="no",
    save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, optim="sgd", learning_rate=0.1,
)
Trainer(model=model, args=options, train_dataset=rows).train()  # made here
tell(model)
"""
PROGRAMS = {"accelerate": ACCELERATE, "lightning": LIGHTNING, "transformers": TRANSFORMERS}
FIXED = Experiment(seed=1, is_dropout_off=True, are_norms_frozen=True, are_examples_seeded=True)


def write(folder, library):
    pytest.importorskip(library)
    text = HEAD + PROGRAMS[library]
    (folder / "train.py").write_text(text)
    return next(i for i, line in enumerate(text.splitlines(), start=1) if "# made here" in line)


def watched(folder, name, experiment, ranks):
    experiment.write(folder / f"{name}.json")
    options = ("-m", "samestep.probe", name, "--experiment", f"{name}.json") if ranks else ()
    probe = {} if ranks else {"probe": name, "options": ("--experiment", f"{name}.json")}
    found = run(*options, "train.py", cwd=folder, ranks=ranks, **probe)
    assert found.returncode == 0, found.stderr
    return folder / name


@pytest.mark.parametrize("library", PROGRAMS)
def test_a_replay_of_two_ranks_on_one_takes_the_same_steps(tmp_path, library):
    line = write(tmp_path, library)
    two = watched(tmp_path, "two", FIXED, 2)
    loader = next(row for row in seen(two, Loader) if row.where == f"train.py:{line}")
    batches, gathered = {}, {}
    for rank in (0, 1):
        for row in seen(two, Batch, rank):
            gathered.setdefault(pass_key(row.loader, row.number), {}).setdefault(row.batch, []).append(row)
    for key, of in gathered.items():
        batches[key] = tuple(sum((row.indices for row in of[number]), ()) for number in sorted(of))
    # each batch belongs to the step that it is used in, though libraries fetch ahead
    steps = [row.step for row in seen(two, Batch) if row.loader == loader.loader]
    assert steps == [row.step for row in seen(two, Step)] == [1, 2, 3, 4, 5, 6]
    planned = {row.num_planned for row in seen(two, Pass) if row.loader == loader.loader}
    assert planned == {3}
    lengths = {row.where: 3 for row in seen(two, Loader)}
    one = watched(
        tmp_path, "one", Experiment(**{**vars(FIXED), "batches": batches, "lengths": lengths}), None
    )
    for folder in (one, two):
        assert seen(folder, Trouble) == [] and {call.moved for call in seen(folder, Call)} == {()}
        stages = {(row.stage, row.summary is not None) for row in seen(folder, Gradient)}
        assert stages == {("local", True), ("applied", True)}
    ours, theirs = ({(row.step, row.name): row.summary for row in seen(f, State)} for f in (one, two))
    assert ours.keys() == theirs.keys() and {step for step, _ in ours} == set(range(7))
    # sums of at most 64 products in float32 in another order, six times over: 2 ** -24 of the largest each
    tolerance = 6 * 64 * 2**-24
    for key in ours:
        assert _distance(ours[key], theirs[key]) <= tolerance * max(ours[key].max_abs, 0.1)
    assert any(_distance(ours[0, name], theirs[6, name]) > 10 * tolerance for step, name in ours if step == 6)


def _distance(one, other):
    return max((abs(x - y) for x, y in zip(one.sample, other.sample, strict=True)), default=0.0)


def test_a_program_of_two_libraries_does_not_notice(tmp_path):
    line = write(tmp_path, "transformers")
    alone = run("train.py", cwd=tmp_path)
    seen_by = run("train.py", cwd=tmp_path, probe="seen")
    assert alone.returncode == seen_by.returncode == 0, seen_by.stderr
    digests = [text.stdout.splitlines()[-1] for text in (alone, seen_by)]
    assert digests[0] == digests[1] and len(digests[0]) == 64
    assert f"train.py:{line}" in [row.where for row in seen(tmp_path / "seen", Loader)]
    assert seen(tmp_path / "seen", Trouble) == []


def test_batches_that_rank_0_reads_for_all(tmp_path):
    write(tmp_path, "accelerate")
    found = run("-m", "samestep.probe", "seen", "train.py", "dispatch", cwd=tmp_path, ranks=2)
    assert found.returncode == 0, found.stderr
    rows = [seen(tmp_path / "seen", Batch, rank) for rank in (0, 1)]
    assert [[(row.number, row.batch, row.num_examples) for row in each] for each in rows] == [
        [(p, b, 4 if b < 3 else 2) for p in (1, 2) for b in (1, 2, 3)]
    ] * 2
    assert all(row.indices is None for each in rows for row in each)
    first = [row.examples for each in rows for row in each if row.number == 1]
    assert len(set(sum(first, ()))) == 20
    assert [seen(tmp_path / "seen", Trouble, rank) for rank in (0, 1)] == [[], []]
