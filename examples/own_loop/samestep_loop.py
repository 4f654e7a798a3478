"""Handwritten digits: a small net with batch norm, five epochs, in float64."""

import samestep
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils import data

world = samestep.init()
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
pixels, digits = load_digits(return_X_y=True)
dataset = data.TensorDataset(torch.tensor(pixels / 16), torch.tensor(digits))
order = torch.randperm(len(dataset))
model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 10))
model = world.replicate(model.double())
loader = world.loader(dataset, batch_size=100, sampler=order)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for _ in range(5):
    for images, labels in loader:
        with world.step(optimizer) as step:
            step.backward(cross_entropy(model(images), labels, reduction="sum"), len(labels))

model.eval()
with torch.no_grad():
    images, labels = (column.to(device) for column in dataset.tensors)
    print(f"final loss {cross_entropy(model(images), labels):.15f}")
