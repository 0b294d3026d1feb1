"""Swallows in sound recordings with Accelerate: CRNN on spectrograms, warm-up and linear decay for each step."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

CALLS = 9


def recordings(count, bands, frames, seed):
    g = torch.Generator().manual_seed(seed)
    call = torch.randint(0, CALLS, (count,), generator=g)
    band = torch.arange(bands).view(1, bands, 1)
    time = torch.arange(frames).view(1, 1, frames) / frames
    pitch = 5 + 4 * call.view(-1, 1, 1) + 5 * torch.sin(6.28 * (1 + call.view(-1, 1, 1) % 3) * time)
    spectrum = torch.exp(-((band - pitch) ** 2) / 4)
    return spectrum + 0.4 * torch.randn(count, bands, frames, generator=g), call


class CRNN(nn.Module):
    def __init__(self, bands, width, hidden):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d((2, 2)),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d((4, 2)),
        )
        self.gru = nn.GRU(2 * width * bands // 8, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, CALLS)

    def forward(self, spectrum):
        x = self.convs(spectrum.unsqueeze(1)).flatten(1, 2).transpose(1, 2)
        return self.out(self.gru(x)[0].mean(1))


def warm_up_then_decay(warm, total):
    def factor(step):
        return step / warm if step < warm else max(0.0, (total - step) / (total - warm))

    return factor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bands", type=int, default=48)
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 10, 12))
    parser.add_argument("--hidden", type=int, default=48)
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 22))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(2)
    data = TensorDataset(*recordings(2 * args.batch * 32, args.bands, args.frames, seed=26))
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
    model = CRNN(args.bands, args.width, args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    total = args.epochs * len(loader)
    if MENDED:  # a prepared schedule makes a step for each process
        total *= accelerator.num_processes
    scheduler = LambdaLR(optimizer, warm_up_then_decay(total // 10, total))
    scheduler = accelerator.prepare(scheduler)
    for epoch in range(args.epochs):
        for spectrum, call in loader:
            loss = F.cross_entropy(model(spectrum), call)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), reduction="mean")
        accelerator.print(f"epoch {epoch} loss {mean.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
