"""Water that runs off a glacier in the next days: an encoder of the past, a decoder that goes on from its guesses."""

import argparse

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn

PAST, AHEAD, WEATHER = 60, 24, 5


def glaciers(count, days, seed):
    """Warmth and snow as weather, runoff with a slow store."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(days)
    season = torch.sin(6.28 * (t + 60 * torch.rand(count, 1, generator=g)) / 365)
    warm = season + 0.4 * torch.randn(count, days, generator=g)
    others = torch.randn(count, days, WEATHER - 1, generator=g)
    runoff, store = torch.zeros(count, days), torch.zeros(count)
    for day in range(1, days):
        store = 0.95 * store + warm[:, day].relu() + 0.2 * others[:, day, 0].relu()
        runoff[:, day] = 0.5 * runoff[:, day - 1] + 0.1 * store
    return torch.cat([warm.unsqueeze(2), others], 2), runoff


class RunoffNet(nn.Module):
    """Mean and spread of each day; the weather of the days ahead is known, their runoff is not."""

    def __init__(self, hidden):
        super().__init__()
        self.encoder = nn.GRU(1 + WEATHER, hidden, num_layers=2, batch_first=True)
        self.cell = nn.GRUCell(1 + WEATHER, hidden)
        self.out = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2))
        self.key = nn.Linear(hidden, hidden, bias=False)

    def forward(self, past_weather, past_runoff, weather):
        days, last = self.encoder(torch.cat([past_runoff.unsqueeze(2), past_weather], 2))
        keys, memory, runoff, rows = self.key(days), last[-1], past_runoff[:, -1], []
        for day in range(weather.shape[1]):
            memory = self.cell(torch.cat([runoff.unsqueeze(1), weather[:, day]], 1), memory)
            weight = (keys @ memory.unsqueeze(2)).squeeze(2).softmax(1)
            context = (weight.unsqueeze(1) @ days).squeeze(1)
            change, spread = self.out(torch.cat([memory, context], 1)).unbind(1)
            runoff = runoff + 0.1 * change
            rows.append(torch.stack([runoff, F.softplus(spread) + 0.02], 1))
        return torch.stack(rows, 1)


def windows(weather, runoff, batch, g=None):
    glacier = torch.randint(len(runoff), (batch, 1), generator=g)
    day = torch.randint(runoff.shape[1] - PAST - AHEAD, (batch, 1), generator=g) + torch.arange(PAST + AHEAD)
    seen, flow = weather[glacier, day], runoff[glacier, day]
    return (seen[:, :PAST], flow[:, :PAST], seen[:, PAST:]), flow[:, PAST:]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--hidden", type=int, default=draw("hidden", 64, 72))
    p.add_argument("--batch", type=int, default=draw("batch", 32, 40))
    p.add_argument("--steps", type=int, default=140)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()

    torch.manual_seed(24)
    train, test = glaciers(40, 1200, seed=1), glaciers(8, 700, seed=2)
    model = RunoffNet(args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps)
    for step in range(args.steps):
        inputs, flow = windows(*train, args.batch)
        mean, spread = model(*inputs).unbind(2)
        loss = F.gaussian_nll_loss(mean, flow, spread.square())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 70 == 69:
            model.eval()
            with torch.no_grad():
                inputs, flow = windows(*test, 128, torch.Generator().manual_seed(3))
                error = (model(*inputs)[..., 0] - flow).abs().mean()
            model.train()
            print(f"step {step + 1} loss {loss.item():.4f} error {error.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
