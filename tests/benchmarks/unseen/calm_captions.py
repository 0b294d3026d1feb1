"""Captions for small pictures: a convolutional reader and a recurrent writer, two processes."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WORDS, LENGTH = 400, 12


class Captioned(Dataset):
    def __init__(self, count, size):
        generator = torch.Generator().manual_seed(1)
        self.pictures = torch.rand(count, 3, size, size, generator=generator)
        shade = torch.randint(1, WORDS - LENGTH, (count, 1), generator=generator)
        self.pictures += (shade / WORDS)[:, :, None, None]
        self.captions = torch.cat([torch.zeros(count, 1, dtype=torch.long), shade + torch.arange(LENGTH)], 1)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.pictures[index], self.captions[index]


class Captioner(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        layers, inside = [], 3
        for out in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(inside, out, 3, 1, 1), nn.GroupNorm(4, out), nn.ReLU(), nn.MaxPool2d(2)]
            inside = out
        self.reader = nn.Sequential(*layers)
        self.begin = nn.Linear(inside, hidden)
        self.words = nn.Embedding(WORDS, hidden)
        self.writer = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, WORDS)

    def forward(self, pictures, written):
        begin = torch.tanh(self.begin(self.reader(pictures).mean((2, 3))))
        states, _ = self.writer(self.words(written), begin.unsqueeze(0))
        return self.out(states)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Captioned(3000, args.size)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Captioner(args.width, args.hidden))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (pictures, captions) in enumerate(loader):
            logits = model(pictures, captions[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), captions[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
