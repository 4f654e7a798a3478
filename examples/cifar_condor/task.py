"""The same as a task: samestep train task.py --gpus 4 --set folder=FOLDER"""

from functools import partial

import samestep
import torch
from cifar import Net, cifar10
from torch import nn
from torchmetrics.classification import MulticlassAccuracy


def task(folder: str = "cifar-10-batches-bin") -> samestep.Task:
    return samestep.Task(
        model=Net,
        train_data=partial(cifar10, folder, train=True),
        valid_data=partial(cifar10, folder, train=False),
        loss=samestep.supervised(nn.CrossEntropyLoss()),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        metrics={"accuracy": partial(MulticlassAccuracy, num_classes=10, average="micro")},
        batch_size=32,
        epochs=4,
    )
