"""Trains a small language model on sentences of other lengths. Fault: tokens-averaged-per-rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler

VOCABULARY = 20
PADDING = -100
BATCH_SIZE = 12


def make_sentences(n=60):
    """Each token is the one before plus two or three."""
    g = torch.Generator().manual_seed(77)
    lengths = torch.randint(3, 17, (n,), generator=g).tolist()
    return [(2 + torch.randint(0, 2, (length,), generator=g)).cumsum(0) % VOCABULARY for length in lengths]


def collate(sentences):
    inputs = pad_sequence([s[:-1] for s in sentences], batch_first=True)
    targets = pad_sequence([s[1:] for s in sentences], batch_first=True, padding_value=PADDING)
    return inputs, targets


class LanguageModel(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    sentences = make_sentences()
    sampler = DistributedSampler(sentences)
    loader = DataLoader(sentences, BATCH_SIZE // world_size, sampler=sampler, collate_fn=collate)
    model = DDP(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss(ignore_index=PADDING)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
