"""Trains on padded sentences with gradients accumulated over two micro-batches.

Fault: tokens-averaged-per-rank.
"""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

VOCABULARY = 20
PAD, IGNORED = 0, -100
MICRO_BATCH_SIZE = 12
ACCUMULATION_STEPS = 2


def make_sentences(size: int = 96) -> list[torch.Tensor]:
    """Token sequences of 3 to 16 tokens, each token mostly the one before plus a fixed stride."""
    generator = torch.Generator().manual_seed(2)
    sentences = []
    for _ in range(size):
        length, start, stride = (int(torch.randint(3, 17, (), generator=generator)) for _ in range(3))
        sentences.append(1 + (start + stride * torch.arange(length)) % (VOCABULARY - 1))
    return sentences


def collate(sentences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = pad_sequence([s[:-1] for s in sentences], batch_first=True, padding_value=PAD)
    labels = pad_sequence([s[1:] for s in sentences], batch_first=True, padding_value=IGNORED)
    return tokens, labels


class LanguageModel(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        return self.head(states)


def main() -> None:
    set_seed(0)
    config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=ACCUMULATION_STEPS, dataloader_config=config
    )
    model = LanguageModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(make_sentences(), batch_size=MICRO_BATCH_SIZE, shuffle=True, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORED)

    for epoch in range(2):
        for tokens, labels in loader:
            with accelerator.accumulate(model):
                loss = criterion(model(tokens).flatten(0, 1), labels.flatten())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss per token {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
