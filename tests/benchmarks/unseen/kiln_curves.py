"""Model the temperature in kilns from what the burners get: stateful GRU, truncated backpropagation through time."""

import argparse

import torch
import torch.nn as nn
from drawn import draw


def fire_kilns(kilns, minutes, seed=52):
    """Two masses that take up heat from the burners and lose it, with fans that are switched now and then."""
    g = torch.Generator().manual_seed(seed)
    burner = torch.zeros(kilns, minutes, 3)
    level = torch.rand(kilns, 3, generator=g)
    for minute in range(minutes):
        switch = torch.rand(kilns, 3, generator=g) < 0.03
        level = torch.where(switch, torch.rand(kilns, 3, generator=g), level)
        burner[:, minute] = level
    air, stone, kept = torch.zeros(kilns), torch.zeros(kilns), []
    for minute in range(minutes):
        heat = burner[:, minute, :2].sum(1)
        air = air + 0.2 * heat - 0.1 * (air - stone) - 0.05 * air * (0.5 + burner[:, minute, 2])
        stone = stone + 0.02 * (air - stone)
        kept.append(torch.stack([air, stone], 1))
    temperature = torch.stack(kept, 1)
    return burner, (temperature - temperature.mean()) / temperature.std()


class Twin(nn.Module):
    def __init__(self, hidden, layers):
        super().__init__()
        self.gru = nn.GRU(3, hidden, layers, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2))

    def forward(self, burner, state):
        out, state = self.gru(burner, state)
        return self.head(out), state


def chunks(burner, temperature, length):
    """The firings from begin to end, a stretch at a time: order matters, as the state is carried on."""
    for begin in range(0, burner.shape[1] - length + 1, length):
        yield burner[:, begin : begin + length], temperature[:, begin : begin + length]


@torch.no_grad()
def simulate(model, burner, temperature, length):
    model.eval()
    state, errors = None, []
    for fed, truth in chunks(burner, temperature, length):
        guess, state = model(fed, state)
        errors.append((guess - truth).square().mean())
    model.train()
    return torch.stack(errors).mean().sqrt().item()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--kilns", type=int, default=draw("kilns", 40, 48))
    ap.add_argument("--minutes", type=int, default=1680)
    ap.add_argument("--length", type=int, default=60)
    ap.add_argument("--hidden", type=int, default=draw("hidden", 60, 64))
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()

    torch.manual_seed(18)
    burner, temperature = fire_kilns(args.kilns + 8, args.minutes)
    train, test = (burner[8:], temperature[8:]), (burner[:8], temperature[:8])
    model = Twin(args.hidden, args.layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    for epoch in range(args.epochs):
        state, losses = None, []
        for fed, truth in chunks(*train, args.length):
            if state is not None:
                state = state.detach()
            guess, state = model(fed, state)
            loss = nn.functional.mse_loss(guess, truth)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.detach())
        schedule.step()
        mean = torch.stack(losses).mean().item()
        print(f"epoch {epoch}: loss {mean:.4f}, test RMSE {simulate(model, *test, args.length):.4f}", flush=True)


if __name__ == "__main__":
    main()
