"""Right: trains a tagger on padded sentences, two small batches an update, divided by all of their tokens."""

from itertools import islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

ACCUMULATION_STEPS = 2
GLOBAL_BATCH = 24
IGNORED = -100


class Tagged(Dataset):
    """Words are numbers; the tag tells if a word is larger than the one before."""

    def __init__(self, n=120):
        g = torch.Generator().manual_seed(13)
        self.words = [torch.randint(1, 30, (4 + 3 * (i % 6),), generator=g) for i in range(n)]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        words = self.words[index]
        return words, (words > words.roll(1)).long()


def collate(pairs):
    words, tags = zip(*pairs, strict=True)
    return pad_sequence(words, True), pad_sequence(tags, True, padding_value=IGNORED)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.classifier = nn.Linear(16, 2)

    def forward(self, words):
        return self.classifier(self.lstm(self.embedding(words))[0])


def update(model, optimizer, batches):
    """One update from a few batches."""
    optimizer.zero_grad()
    num_tokens = sum((tags != IGNORED).sum() for _, tags in batches)
    dist.all_reduce(num_tokens)
    for i, (words, tags) in enumerate(batches):
        model.require_backward_grad_sync = i + 1 == len(batches)
        logits = model(words)
        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=IGNORED, reduction="sum")
        (loss * dist.get_world_size() / num_tokens).backward()
    optimizer.step()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Tagged()
    sampler = DistributedSampler(data)
    batch_size = GLOBAL_BATCH // ACCUMULATION_STEPS // dist.get_world_size()
    loader = DataLoader(data, batch_size, sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = iter(loader)
        while few := list(islice(batches, ACCUMULATION_STEPS)):
            update(model, optimizer, few)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} done")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
