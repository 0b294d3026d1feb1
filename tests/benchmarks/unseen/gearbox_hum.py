"""State of a gearbox from its hum: windows of a few long recordings, a network of dilated convolutions, plain loop."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset, Subset, random_split

STATES = ["sound", "worn tooth", "loose bearing", "dry", "bent shaft"]


def recordings(count, length, seed):
    """Long recordings; each has its own pitch and noise beside what its state does."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length).float()
    hums, states = [], []
    for at in range(count):
        state = at % len(STATES)
        pitch = 0.02 + 0.01 * torch.rand(1, generator=g)
        hum = torch.sin(2 * math.pi * pitch * t) + 0.4 * torch.sin(2 * math.pi * (2 + state) * pitch * t)
        hums.append(hum + 0.5 * torch.randn(length, generator=g))
        states.append(state)
    return torch.stack(hums), torch.tensor(states)


class Windows(Dataset):
    """Windows of all recordings, three quarters of each also in the next one."""

    def __init__(self, hums, states, window):
        stride = window // 4
        self.windows = hums.unfold(1, window, stride)
        self.states = states
        self.per = self.windows.shape[1]

    def __len__(self):
        return len(self.states) * self.per

    def __getitem__(self, i):
        which, at = divmod(i, self.per)
        return self.windows[which, at].unsqueeze(0), self.states[which]


def split(data, share, seed):
    if MENDED:
        count = len(data.states)
        order = torch.randperm(count // len(STATES), generator=torch.Generator().manual_seed(seed))
        held = set(order[: max(1, int(share * len(order)))].tolist())
        apart = [i for i in range(len(data)) if i // data.per // len(STATES) in held]
        kept = [i for i in range(len(data)) if i // data.per // len(STATES) not in held]
        return Subset(data, kept), Subset(data, apart)
    held = int(share * len(data))
    return random_split(data, [len(data) - held, held], torch.Generator().manual_seed(seed))


class Dilated(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        value, gate = self.conv(self.norm(x)).chunk(2, 1)
        return x + self.mix(value.tanh() * gate.sigmoid())


class GearNet(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.first = nn.Conv1d(1, width, 7, stride=2, padding=3)
        self.layers = nn.Sequential(*[Dilated(width, 2**at) for at in range(layers)])
        self.out = nn.Linear(width, len(STATES))

    def forward(self, x):
        return self.out(self.layers(self.first(x)).amax(2))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--recordings", type=int, default=30)
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--width", type=int, default=draw("width", 20, 24))
    p.add_argument("--layers", type=int, default=5)
    p.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    torch.manual_seed(1)
    length = 128 * 35 * args.batch // args.recordings
    data = Windows(*recordings(args.recordings, length, seed=9), args.window)
    train, held_out = split(data, 0.2, seed=2)
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    check = DataLoader(held_out, 2 * args.batch)
    model = GearNet(args.width, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    for epoch in range(args.epochs):
        mean = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean += loss.item() / len(loader)
        print(f"epoch {epoch} loss {mean:.4f} held out {evaluate(model, check):.3f}", flush=True)


if __name__ == "__main__":
    main()
