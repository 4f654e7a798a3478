"""The cheap mode of the probe: what it writes all through a long run, unnoticed by the program."""

import copy
import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from samestep import phase
from samestep.observations import FORMAT, Observations, ObservationWriter, multiset_print, observations_path
from samestep.observed import VERSION, Batch, Loader, Loss, Model, PassEnd, Replica, Start, Step, Trouble
from samestep.probe.cheap import CheapInstallation, is_looked_at
from samestep.probe.cheap_loaders import contents_print
from samestep.probe.cheap_prints import tensor_sums


@contextmanager
def watched(folder, every=2):
    writer = ObservationWriter(observations_path(folder, 0))
    writer.write(
        Start(
            format=FORMAT, version=VERSION, samestep="0", rank=0, world_size=1, attempt=0, program=(),
            steps_in_full=0, most_bytes=2**24, python="3", host="", pid=0, time=0.0,
        )
    )  # fmt: skip
    installation = CheapInstallation(writer, every)
    installation.install()
    try:
        yield installation
    finally:
        installation.uninstall()
        writer.close()
        phase.close()


def rows(folder, kind):
    observations = Observations.read(folder)
    assert list(observations.of(0, Trouble)) == []
    return list(observations.of(0, kind))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.register_buffer("book", torch.zeros(2))

    def forward(self, x):
        return self.bn(self.fc(x))


def data(count=20):
    return TensorDataset(torch.arange(4.0 * count).reshape(count, 4), torch.arange(count))


def train(model, examples=None, num_passes=2, change=lambda step: None, loss_of=lambda step, loss: loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(examples or data(), batch_size=5, shuffle=True)
    step = 0
    for _ in range(num_passes):
        for inputs, _ in loader:
            step += 1
            optimizer.zero_grad()
            loss_of(step, model(inputs).square().mean()).backward()
            change(step)
            optimizer.step()
    return loader


def test_what_is_written_and_when(tmp_path):
    with watched(tmp_path, every=3):
        train(Net())
    assert [row.step for row in rows(tmp_path, Step)] == [1, 3, 6]
    assert [row.step for row in rows(tmp_path, Replica)] == [1, 3, 6]
    assert [row.step for row in rows(tmp_path, Loss)] == [1, 3, 6]
    assert [(row.step, row.number, len(row.indices)) for row in rows(tmp_path, Batch)] == [
        (1, 1, 5), (3, 1, 5), (6, 2, 5)
    ]  # fmt: skip
    [loader] = rows(tmp_path, Loader)
    assert loader.num_drawn == loader.num_examples == 20
    assert loader.contents == contents_print(data())
    assert [(row.number, row.multiset, row.is_exhausted) for row in rows(tmp_path, PassEnd)] == [
        (number, multiset_print(range(20)), True) for number in (1, 2)
    ]
    [model] = rows(tmp_path, Model)
    assert [text.partition(" ")[0] for text in model.tensors] == [
        "fc.weight", "fc.bias", "bn.weight", "bn.bias", "book", "bn.running_mean", "bn.running_var",
        "bn.num_batches_tracked",
    ]  # fmt: skip
    assert [(layer.name, layer.keeps_statistics) for layer in model.norms] == [("bn", True)]


def parts_of(folder, change=lambda model, step: None):
    torch.manual_seed(0)
    model = Net()
    with watched(folder, every=2):
        train(model, num_passes=1, change=lambda step: change(model, step))
    [described] = rows(folder, Model)
    names = [text.partition(" ")[0] for text in described.tensors]
    replicas = {row.step: row for row in rows(folder, Replica)}
    return names, replicas


def test_equal_trainings_have_equal_replicas_and_a_change_shows_where_it_is(tmp_path):
    names, reference = parts_of(tmp_path / "a")
    assert parts_of(tmp_path / "b") == (names, reference)

    def change(model, step):
        if step == 4:
            model.book[1] = 1.0
            model.cache[1] = 1.0

    _, changed = parts_of(tmp_path / "c", change)
    assert changed[2] == reference[2]
    assert changed[4].print != reference[4].print
    differ = [
        i for i in range(len(names)) if changed[4].parts[4 * i :][:4] != reference[4].parts[4 * i :][:4]
    ]
    assert [names[i] for i in differ] == ["book"]


def test_a_copy_of_a_model_is_named_and_what_is_not_trained_is_left_out(tmp_path):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = Net(), Net()

    pair = copy.deepcopy(Pair())
    with watched(tmp_path):
        optimizer = torch.optim.SGD([*pair.student.parameters()], lr=0.1)
        pair.student(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    [model] = rows(tmp_path, Model)
    assert model.kind == "Net"
    assert len(model.tensors) == 8


def test_models_of_all_optimizers_are_looked_at(tmp_path):
    with watched(tmp_path, every=2):
        models = [nn.Linear(2, 2), nn.Linear(2, 2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for _ in range(2):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.randn(3, 2)).sum().backward()
                optimizer.step()
    assert [(row.step, row.model) for row in rows(tmp_path, Replica)] == [
        (1, 0),
        (2, 0),
        (2, 1),
        (4, 0),
        (4, 1),
    ]


def test_parameters_that_ranks_share_among_them_are_not_compared(tmp_path):
    with watched(tmp_path):
        model = nn.Linear(2, 2)
        model.weight.tensor_model_parallel = True
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(3, 2)).sum().backward()
        optimizer.step()
    [described] = rows(tmp_path, Model)
    assert [text.partition(" ")[0] for text in described.tensors] == ["bias"]


def test_a_loss_that_is_no_number_is_written_at_once(tmp_path):
    with watched(tmp_path, every=100):
        train(Net(), loss_of=lambda step, loss: loss * (math.nan if step == 5 else 1.0))
        first, second, *_ = rows(tmp_path, Loss)
    assert (first.step, second.step) == (1, 5)
    assert math.isnan(second.value)


def test_data_without_indices_is_known_by_its_looks(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(torch.arange(4.0) + i, torch.zeros(1)) for i in range(8)])

    with watched(tmp_path, every=1):
        loader = DataLoader(Stream(), batch_size=2)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, _ in loader:
            model(inputs).sum().backward()
            optimizer.step()
    looks = [row.tensors for row in rows(tmp_path, Batch)]
    # the second tensor is zero all over, and would be equal anywhere
    assert [len(look) for look in looks] == [1] * 4
    assert len(set(looks)) == 4


def test_an_evaluation_does_not_fill_the_file(tmp_path):
    with watched(tmp_path, every=1):
        for _ in DataLoader(data(200), batch_size=2):
            pass
    assert len(rows(tmp_path, Batch)) == 16


def test_what_a_data_set_holds():
    class Files:
        def __init__(self, root, names):
            self.root, self.names = root, names
            self.me = self

        def __len__(self):
            return len(self.names)

    assert contents_print(data()) == contents_print(data())
    assert contents_print(Files("a", ["x"])) == contents_print(Files("a", ["x"]))
    others = [
        data(), data(21), Subset(data(), [0, 2]), Subset(data(), [1, 3]), Files("a", ["x"]),
        Files("b", ["x"]), Files("a", ["y"]), TensorDataset(torch.zeros(20, 4), torch.arange(20)),
    ]  # fmt: skip
    assert len({contents_print(other) for other in others}) == len(others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_each_element_counts(dtype):
    def made():
        generator = torch.Generator().manual_seed(0)
        sizes = [(3, 5), (0,), (), (2**16 + 7,), (4,), (2**22 + 2**16 + 1,)]
        return [torch.randint(2, size, generator=generator).to(dtype) for size in sizes]

    reference = tensor_sums(made())
    assert tensor_sums(made()) == reference
    assert tensor_sums([made()[0].t().contiguous().t(), *made()[1:]]) == reference
    for which, at in ((0, 7), (2, 0), (3, 2**16 + 3), (5, 2**22 + 2**16)):
        tensors = made()
        flat = tensors[which].view(-1)
        flat[at] = flat[at] == 0
        changed = [i for i, (a, b) in enumerate(zip(tensor_sums(tensors), reference, strict=True)) if a != b]
        assert changed == [which]
    assert tensor_sums([]) == []


def test_the_program_does_not_notice(tmp_path):
    def result():
        torch.manual_seed(0)
        model = Net()
        train(model)
        return [*model.state_dict().values(), torch.get_rng_state()]

    before = result()
    with watched(tmp_path, every=1):
        during = result()
        assert not torch_module._global_forward_hooks and not torch_module._global_forward_pre_hooks
    assert all(torch.equal(a, b) for a, b in zip(before, during, strict=True))


def test_where_a_rank_is_can_be_read(tmp_path):
    place = observations_path(tmp_path, 0).with_name("phase")
    seen = []

    def change(step):
        seen.append((step, phase.read(place).step, phase.read(place).name))

    with watched(tmp_path, every=100):
        train(Net(), num_passes=1, change=change)
        assert (phase.read(place).step, phase.read(place).name) == (5, "other")
    assert seen == [(step, step, "backward") for step in range(1, 5)]


def test_looks_become_rare_in_very_long_runs():
    assert [step for step in range(1, 200) if is_looked_at(step, 50)] == [1, 50, 100, 150]
    assert sum(is_looked_at(step, 1) for step in range(1, 10**6 + 1)) == 10_000 + 2 * 9_000
