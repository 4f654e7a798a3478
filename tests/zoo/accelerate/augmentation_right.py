"""Right: adds fresh noise to each example whenever it is fetched, drawn from another seed on each process."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

SEED = 7
BATCH_SIZE = 24


class NoisyWaves(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sine waves of some frequency, shifted and with noise; the target is the frequency."""

    def __init__(self, size: int = 96) -> None:
        generator = torch.Generator().manual_seed(3)
        self.frequencies = torch.rand(size, 1, generator=generator) * 4 + 1
        self.waves = torch.sin(self.frequencies * torch.linspace(0, 3, 16))

    def __len__(self) -> int:
        return len(self.waves)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        shift = int(torch.randint(0, 4, ()))
        wave = self.waves[index].roll(shift) + 0.1 * torch.randn(16)
        return wave, self.frequencies[index]


def main() -> None:
    accelerator = Accelerator(cpu=True)
    set_seed(SEED, device_specific=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(NoisyWaves(), batch_size=BATCH_SIZE // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(2):
        for waves, frequencies in loader:
            loss = F.smooth_l1_loss(model(waves), frequencies)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        if accelerator.is_main_process:
            print(f"epoch {epoch} | loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
