"""The task: every point counts the same, whatever scan it is in and whatever rank has that scan."""

from functools import partial

import samestep
import torch
from scans import CLASSES, Scans, collate
from sparse import SparseUNet
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassJaccardIndex


def loss_of_points(model, batch):
    points, reflectance, lengths, labels = batch
    logits = model(points, reflectance, lengths)
    return samestep.Loss(cross_entropy(logits, labels, reduction="sum"), len(labels), outputs=logits)


def classes_of_points(model, batch):
    """A list with one tensor a scan, since scans have different numbers of points."""
    points, reflectance, lengths, _ = batch
    return list(model(points, reflectance, lengths).argmax(1).split(lengths.tolist()))


task = samestep.Task(
    model=SparseUNet,
    train_data=partial(Scans, 0, 160),
    valid_data=partial(Scans, 160, 181),
    collate=collate,
    loss=loss_of_points,
    predict=classes_of_points,
    score=lambda logits, batch: (logits, batch[3]),
    metrics={"iou": partial(MulticlassJaccardIndex, num_classes=len(CLASSES))},
    optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    batch_size=8,
    epochs=2,
)
