"""Python's own reference, as `help("if")` prints it, byte by byte: it is there wherever Python is."""

from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.utils.data import Dataset

CONTEXT = 96
IGNORED = -100


class Paragraphs(Dataset):
    """Examples of one paragraph each: (bytes, the byte after each), filled up to CONTEXT."""

    def __init__(self, start: int, stop: int) -> None:
        texts = [paragraph.encode() for name in sorted(topics) for paragraph in topics[name].split("\n\n")]
        self.texts = texts[start:stop]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        text = torch.tensor(list(b"\n" + self.texts[index] + b"\0")[: CONTEXT + 1])
        inputs, targets = torch.zeros(CONTEXT, dtype=torch.long), torch.full((CONTEXT,), IGNORED)
        inputs[: len(text) - 1], targets[: len(text) - 1] = text[:-1], text[1:]
        return inputs, targets
