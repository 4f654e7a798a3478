"""Trains a small model with batches of 24, started on as many processes as there are.

Fault: batch-grows-with-world.
"""

import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Sums(Dataset[dict[str, torch.Tensor]]):
    """Two digits as one-hot rows; the label is whether their sum needs a second digit."""

    def __init__(self, size: int = 144) -> None:
        digits = torch.randint(0, 10, (size, 2), generator=torch.Generator().manual_seed(21))
        self.inputs = F.one_hot(digits, 10).float().flatten(1)
        self.labels = (digits.sum(dim=1) > 9).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 2))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo",
            num_train_epochs=2,
            per_device_train_batch_size=24,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Sums())
        trainer.train()


if __name__ == "__main__":
    main()
