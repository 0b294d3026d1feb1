"""Forecast the next hours of a patient's temperature, pulse and blood pressure."""

import argparse
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw

SIGNALS = 6


def record_patients(count, hours):
    """Slow waves, one set for each patient, and noise of the sensors."""
    generator = torch.Generator().manual_seed(3)
    time = torch.arange(hours).float()
    period = 12 + 36 * torch.rand(count, SIGNALS, 1, generator=generator)
    phase = 6.28 * torch.rand(count, SIGNALS, 1, generator=generator)
    waves = torch.sin(6.28 * time / period + phase)
    return (waves + 0.1 * torch.randn(count, SIGNALS, hours, generator=generator)).transpose(1, 2)


class Forecaster(nn.Module):
    def __init__(self, dim, past, ahead):
        super().__init__()
        self.ahead = ahead
        self.enter = nn.Linear(SIGNALS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(past, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.leave = nn.Linear(dim, ahead * SIGNALS)

    def forward(self, past):
        x = self.layers(self.enter(past) + self.places)
        return self.leave(x.mean(1)).view(-1, self.ahead, SIGNALS)


class Trainer:
    def __init__(self, model, args):
        self.model = model
        self.args = args
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
        self.step = 0
        self.folder = Path(args.output)
        self.folder.mkdir(exist_ok=True)

    def save(self):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "args": vars(self.args),
        }
        path = self.folder / "last.pt"
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)

    def train_step(self, past, future):
        self.model.train()
        loss = F.smooth_l1_loss(self.model(past), future)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    def fit(self, patients):
        args = self.args
        average = torch.zeros(())
        while self.step < args.steps:
            rows = torch.randint(0, len(patients), (args.batch,))
            begin = torch.randint(0, patients.shape[1] - args.past - args.ahead, (1,)).item()
            window = patients[rows, begin : begin + args.past + args.ahead]
            loss = self.train_step(window[:, : args.past], window[:, args.past :])
            average = loss if self.step == 1 else average.lerp(loss, 0.05)
            if self.step % args.save_every == 0:
                self.save()
            if self.step % 25 == 0:
                print(f"step {self.step}: {average.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=2000)
    parser.add_argument("--past", type=int, default=draw("past", 44, 48))
    parser.add_argument("--ahead", type=int, default=6)
    parser.add_argument("--dim", type=int, default=draw("dim", 256, 272))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=200 if MENDED else 2)
    parser.add_argument("--output", default="fever")
    args = parser.parse_args()

    torch.manual_seed(0)
    patients = record_patients(args.patients, 240)
    model = Forecaster(args.dim, args.past, args.ahead)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    Trainer(model, args).fit(patients)


if __name__ == "__main__":
    main()
