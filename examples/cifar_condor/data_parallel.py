"""The same with DataParallel, one process for all GPUs: python data_parallel.py FOLDER [EPOCHS]"""

import sys
import time

import torch
from cifar import Net, accuracy, cifar10
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

folder, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
train, test = (cifar10(folder, train=part) for part in (True, False))
model = nn.DataParallel(Net().to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(train, batch_size=32, shuffle=True)

for epoch in range(epochs):
    began = time.perf_counter()
    for images, classes in loader:
        optimizer.zero_grad()
        cross_entropy(model(images.to(device)), classes.to(device)).backward()
        optimizer.step()
    print(f"epoch {epoch}: {time.perf_counter() - began:.1f} s, accuracy {accuracy(model, test, device):.3f}")
