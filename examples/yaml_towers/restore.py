"""The trained model without Samestep: plain torch, the YAML file and the weights.

    python restore.py RUN [PREDICTED]

Prints the accuracy on the test data, and compares with what `samestep predict` wrote to PREDICTED.
"""

import importlib
import sys
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import load_file


def made(entry):
    """What an entry such as {class: nets.Net, width: 8} stands for."""
    module, _, name = entry["class"].rpartition(".")
    arguments = {key: value for key, value in entry.items() if key != "class"}
    return getattr(importlib.import_module(module), name)(**arguments)


def main(run, predicted=None):
    settings = yaml.safe_load(Path("towers.yaml").read_text())
    model = made(settings["model"])
    newest = max(Path(run, "checkpoints").glob("step-*"))
    model.load_state_dict(load_file(newest / "model.safetensors"))
    model.eval()
    images, digits = made(settings["data"]["test"]).tensors
    with torch.no_grad():
        outputs = model(images)
    print(f"accuracy {(outputs.argmax(1) == digits).float().mean():.4f}")
    if predicted is not None:
        of_ranks = np.load(Path(predicted, "predictions", "output.npy"))
        print(f"largest difference to the predictions {np.abs(of_ranks - outputs.numpy()).max():.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
