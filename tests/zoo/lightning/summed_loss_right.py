"""Right: averages the squared errors of the batch, as DDP averages the gradients."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH_SIZE = 24
WORLD_SIZE = int(os.environ["WORLD_SIZE"])


class Springs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Damping, stiffness and time of a spring; the target is where it is."""

    def __init__(self, size: int = 96) -> None:
        self.inputs = torch.rand(size, 3, generator=torch.Generator().manual_seed(19))
        damping, stiffness, time = self.inputs.unbind(dim=1)
        self.targets = torch.exp(-damping * time) * torch.cos(6 * stiffness * time)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        return F.mse_loss(self.net(inputs).squeeze(1), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    L.seed_everything(3)
    loader = DataLoader(Springs(), batch_size=BATCH_SIZE // WORLD_SIZE, shuffle=True)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader)


if __name__ == "__main__":
    main()
