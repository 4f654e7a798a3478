"""The demo's task: fixed, importable, and worth a demonstration."""

import pickle

import torch
from torch.utils.data import DataLoader

from samestep import demo
from samestep.task import Task


def _train(task: Task) -> float:
    """The plain one-GPU loop; the validation accuracy at its end."""
    torch.manual_seed(task.seed)
    model, data = task.model(), task.train_data()
    optimizer = task.optimizer(model.parameters())
    schedule = task.schedule(optimizer)
    for _ in range(task.epochs):
        for batch in DataLoader(data, batch_size=task.batch_size, shuffle=True):
            total, weight, *_ = task.loss(model, batch)
            optimizer.zero_grad()
            (total / weight).backward()
            optimizer.step()
            schedule.step()
    metric = task.metrics["accuracy"]()
    model.eval()
    with torch.no_grad():
        for images, classes in DataLoader(task.valid_data(), batch_size=100):
            metric.update(model(images), classes)
    return float(metric.compute())


def test_it_learns_in_three_epochs() -> None:
    assert _train(demo.digits) > 0.9


def test_an_untrained_model_does_not_pass() -> None:
    from dataclasses import replace

    still = replace(demo.digits, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    assert _train(still) < 0.5


def test_the_split_is_fixed_and_has_every_digit_on_both_sides() -> None:
    train, valid = demo.digits.train_data(), demo.digits.valid_data()
    assert (len(train), len(valid)) == (1500, 297)
    assert train.images.dtype == torch.float32 and train.images.shape[1:] == (1, 8, 8)
    assert train.images.min() >= 0 and train.images.max() == 1
    assert set(train.classes.tolist()) == set(valid.classes.tolist()) == set(range(10))
    seen = {image.numpy().tobytes() for image in train.images}
    assert not any(image.numpy().tobytes() in seen for image in valid.images)


def test_augmentation_follows_the_random_state_and_only_in_training() -> None:
    train, valid = demo.digits.train_data(), demo.digits.valid_data()

    def draws(data: demo.Digits, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.stack([data[i][0] for i in range(20)])

    assert torch.equal(draws(train, 1), draws(train, 1))
    assert not torch.equal(draws(train, 1), draws(train, 2))
    assert torch.equal(draws(valid, 1), draws(valid, 2))


def test_data_sets_can_be_sent_to_loader_workers() -> None:
    data = pickle.loads(pickle.dumps(demo.digits.train_data()))  # noqa: S301  what a worker process does
    assert len(data) == 1500
