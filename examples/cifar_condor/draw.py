"""Draws a small data set of ten kinds of pictures, in files like CIFAR-10's: python draw.py FOLDER

A kind is a direction of stripes. Colours, widths, places and noise are drawn at random.
"""

import sys
from pathlib import Path

import numpy as np

NUM_TRAIN, NUM_TEST = 1200, 500


def records(count, generator):
    """Records of 3073 bytes: the kind, and the red, green and blue values of a picture of it."""
    kinds = generator.integers(10, size=count)
    rows, columns = np.mgrid[:32, :32] / 32
    pictures = np.empty((count, 3, 32, 32))
    for picture, kind in zip(pictures, kinds, strict=True):
        angle = np.pi * (kind + generator.uniform(-0.4, 0.4)) / 10
        place = rows * np.sin(angle) + columns * np.cos(angle)
        stripes = np.sin(2 * np.pi * (generator.uniform(3, 6) * place + generator.uniform()))
        picture[:] = generator.uniform(-1, 1, (3, 1, 1)) * stripes + generator.normal(0, 0.6, (3, 32, 32))
    values = np.clip(127.5 + 80 * pictures, 0, 255).astype(np.uint8)
    return np.column_stack([kinds.astype(np.uint8), values.reshape(count, -1)])


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for name, count in (("data_batch_1.bin", NUM_TRAIN), ("test_batch.bin", NUM_TEST)):
        records(count, generator).tofile(folder / name)


if __name__ == "__main__":
    main()
