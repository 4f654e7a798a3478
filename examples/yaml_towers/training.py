"""What the YAML file names and only the training needs: the loss and a hook, for any number of GPUs."""

import csv
from pathlib import Path

import samestep
from nets import penalty_of
from samestep.hooks import Hook
from torch.nn.functional import cross_entropy


def loss(model, batch):
    """The penalty is no example's: it counts once a step."""
    images, digits = batch
    outputs = model(images)
    total = cross_entropy(outputs, digits, reduction="sum")
    return samestep.Loss(total, len(digits), penalty=penalty_of(model), outputs=outputs)


class Trace(Hook):
    """Writes the values of each epoch to a CSV file, once for all ranks."""

    def __init__(self, path):
        self.path = Path(path)

    def after_epoch(self, training, values):
        if not training.world.is_first:
            return
        row = {"epoch": training.epoch, "step": training.step, **values}
        is_new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if is_new:
                writer.writeheader()
            writer.writerow(row)
