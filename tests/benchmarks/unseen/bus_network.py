"""Delays in a bus network some minutes ahead: graph convolution inside a GRU cell (as in DCRNN), one process."""

import argparse

import torch
import torch.nn as nn
from drawn import draw
from torch.utils.data import DataLoader, Dataset


def bus_graph(stops, seed=15):
    """Stops in the plane, each with its five nearest; returns the normalised adjacency, forth and back."""
    g = torch.Generator().manual_seed(seed)
    place = torch.rand(stops, 2, generator=g)
    near = torch.cdist(place, place).topk(6, largest=False)
    weight = torch.zeros(stops, stops)
    weight.scatter_(1, near.indices, torch.exp(-((near.values / near.values.std()) ** 2)))
    forth = weight / weight.sum(1, keepdim=True)
    back = weight.T / weight.T.sum(1, keepdim=True).clamp(min=1e-6)
    return forth, back


def simulate_delays(forth, length, seed=16):
    g = torch.Generator().manual_seed(seed)
    delay, kept = torch.zeros(len(forth)), []
    for t in range(length):
        shock = (torch.rand(len(forth), generator=g) < 0.01) * 8 * torch.rand(len(forth), generator=g)
        rush = 0.3 * max(0.0, torch.sin(torch.tensor(t * 6.28 / 96)).item())
        delay = 0.55 * delay + 0.38 * forth @ delay + shock + rush
        kept.append(delay)
    return torch.stack(kept)


class Delays(Dataset):
    def __init__(self, delays, past, ahead):
        self.delays = (delays - delays.mean()) / delays.std()
        self.past, self.ahead = past, ahead
        clock = torch.arange(len(delays)) * 6.28 / 96
        self.clock = torch.stack([clock.sin(), clock.cos()], 1)

    def __len__(self):
        return len(self.delays) - self.past - self.ahead

    def __getitem__(self, i):
        stop = i + self.past
        clock = self.clock[i:stop].unsqueeze(1).expand(-1, self.delays.shape[1], -1)
        return torch.cat([self.delays[i:stop].unsqueeze(2), clock], 2), self.delays[stop : stop + self.ahead]


class DiffusionConv(nn.Module):
    def __init__(self, enter, leave, supports):
        super().__init__()
        self.linear = nn.Linear(enter * (1 + len(supports)), leave)
        for i, support in enumerate(supports):
            self.register_buffer(f"support{i}", support, persistent=False)
        self.count = len(supports)

    def forward(self, x):
        mixed = [getattr(self, f"support{i}") @ x for i in range(self.count)]
        return self.linear(torch.cat([x, *mixed], -1))


class GraphGRUCell(nn.Module):
    def __init__(self, enter, hidden, supports):
        super().__init__()
        self.hidden = hidden
        self.gates = DiffusionConv(enter + hidden, 2 * hidden, supports)
        self.new = DiffusionConv(enter + hidden, hidden, supports)

    def forward(self, x, h):
        reset, keep = self.gates(torch.cat([x, h], -1)).sigmoid().chunk(2, -1)
        candidate = self.new(torch.cat([x, reset * h], -1)).tanh()
        return keep * h + (1 - keep) * candidate


class Forecaster(nn.Module):
    def __init__(self, hidden, ahead, supports):
        super().__init__()
        self.cell = GraphGRUCell(3, hidden, supports)
        self.out = nn.Linear(hidden, ahead)

    def forward(self, x):
        batch, past, stops, _ = x.shape
        h = x.new_zeros(batch, stops, self.cell.hidden)
        # each step needs the state of the neighbours after the one before
        for t in range(past):
            h = self.cell(x[:, t], h)
        return self.out(h).transpose(1, 2)


def masked_mae(guess, truth):
    return (guess - truth).abs().mean()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--stops", type=int, default=draw("stops", 56, 64))
    ap.add_argument("--hidden", type=int, default=draw("hidden", 52, 56))
    ap.add_argument("--past", type=int, default=10)
    ap.add_argument("--ahead", type=int, default=6)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()

    torch.manual_seed(30)
    supports = bus_graph(args.stops)
    delays = simulate_delays(supports[0], 800)
    train, test = Delays(delays[:650], args.past, args.ahead), Delays(delays[650:], args.past, args.ahead)
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    model = Forecaster(args.hidden, args.ahead, supports)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-3)
    milestones = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1], gamma=0.3)
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros(())
        for x, y in loader:
            loss = masked_mae(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5)
            optimizer.step()
            total += loss.detach()
        milestones.step()
        model.eval()
        with torch.no_grad():
            error = torch.stack([masked_mae(model(x), y) for x, y in DataLoader(test, 64)]).mean()
        print(f"epoch {epoch}: train {total.item() / len(loader):.4f}, test {error.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
