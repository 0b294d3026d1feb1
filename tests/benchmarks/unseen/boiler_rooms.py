"""Heat of boiler rooms under control signals: a learnt step that is rolled out, with a check on long rollouts."""

import argparse

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn

SENSORS, SIGNALS = 10, 4


def logs(rooms, minutes, seed):
    """A linear system with a soft limit, driven by random switching."""
    g = torch.Generator().manual_seed(seed)
    shared = torch.Generator().manual_seed(77)
    inner = 0.9 * torch.eye(SENSORS) + 0.04 * torch.randn(SENSORS, SENSORS, generator=shared)
    drive = 0.3 * torch.randn(SIGNALS, SENSORS, generator=shared)
    signal = (torch.rand(rooms, minutes, SIGNALS, generator=g) < 0.1).float().cumsum(1) % 2
    heat = torch.zeros(rooms, minutes, SENSORS)
    heat[:, 0] = torch.randn(rooms, SENSORS, generator=g)
    for t in range(1, minutes):
        heat[:, t] = 2 * torch.tanh(0.5 * (heat[:, t - 1] @ inner + signal[:, t - 1] @ drive))
    return heat + 0.02 * torch.randn(heat.shape, generator=g), signal


class RoomStep(nn.Module):
    """What changes in a minute: a gated cell with a memory, and a residual on the sensors."""

    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.cell = nn.GRUCell(SENSORS + SIGNALS, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, SENSORS))

    def forward(self, heat, signal, memory):
        memory = self.cell(torch.cat([heat, signal], 1), memory)
        return heat + 0.1 * self.out(self.norm(memory)), memory

    def rollout(self, heat, signal):
        """From the first reading on, each prediction is the input of the next minute."""
        memory, now, seen = heat.new_zeros(len(heat), self.hidden), heat[:, 0], []
        for t in range(signal.shape[1] - 1):
            now, memory = self(now, signal[:, t], memory)
            seen.append(now)
        return torch.stack(seen, 1)


def validate(model, heat, signal, rooms):
    """Mean absolute error over minutes, in parts of some rooms."""
    model.eval()
    errors = []
    for at in range(0, len(heat), rooms):
        part = slice(at, at + rooms)
        error = (model.rollout(heat[part], signal[part]) - heat[part, 1:]).abs().mean()
        errors.append(error.item())
    model.train()
    return sum(errors) / len(errors)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--hidden", type=int, default=draw("hidden", 48, 64))
    p.add_argument("--batch", type=int, default=draw("batch", 24, 32))
    p.add_argument("--minutes", type=int, default=32)
    p.add_argument("--check", type=int, default=4, help="steps between two validations")
    p.add_argument("--steps", type=int, default=160)
    args = p.parse_args()

    torch.manual_seed(10)
    heat, signal = logs(60, 600, seed=1)
    test_heat, test_signal = logs(96, 160, seed=2)
    model = RoomStep(args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=args.steps)
    check = torch.no_grad()(validate) if MENDED else validate
    best = float("inf")
    for step in range(args.steps):
        room = torch.randint(len(heat), (args.batch, 1))
        minute = torch.randint(600 - args.minutes, (args.batch, 1)) + torch.arange(args.minutes)
        x, u = heat[room, minute], signal[room, minute]
        loss = F.smooth_l1_loss(model.rollout(x, u), x[:, 1:], beta=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % args.check == args.check - 1:
            error = check(model, test_heat, test_signal, rooms=16)
            best = min(best, error)
        if step % 40 == 39:
            print(f"step {step + 1} loss {loss.item():.4f} error {error:.4f} best {best:.4f}", flush=True)


if __name__ == "__main__":
    main()
