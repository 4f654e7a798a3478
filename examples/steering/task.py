"""The same as a task, with a net in torch or in Keras: samestep train task.py[:keras_task] --gpus 4"""

from functools import partial

import samestep
import torch
from road import Net, frames
from torch import nn

task = samestep.Task(
    model=Net,
    train_data=partial(frames, 480, seed=1),
    valid_data=partial(frames, 160, seed=2),
    loss=samestep.supervised(nn.MSELoss()),
    optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    batch_size=32,
    epochs=10,
)


def keras_task() -> samestep.Task:
    from dataclasses import replace

    from keras_net import keras_net

    return replace(task, model=keras_net)
