"""Foresee how full a ferry will be from the weeks before, with Accelerate and a log of how the weights move."""

import argparse
import json

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset


class Forecast(nn.Module):
    """Patches of the past are tokens of a small transformer."""

    def __init__(self, patch, dim, layers, patches, horizon):
        super().__init__()
        self.patch = patch
        self.enter = nn.Linear(patch, dim)
        self.places = nn.Parameter(0.02 * torch.randn(patches, dim))
        block = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(patches * dim, horizon)

    def forward(self, past):
        tokens = self.enter(past.unflatten(1, (-1, self.patch))) + self.places
        return self.head(self.encoder(tokens).flatten(1))


class Journal:
    """One line of JSON a step, which the dashboard reads."""

    def __init__(self, path):
        self.path = path

    def histograms(self, step, model):
        told = {"step": step}
        for name, parameter in model.named_parameters():
            for what, values in (("weight", parameter.detach()), ("gradient", parameter.grad)):
                counts, edges = np.histogram(values.numpy(), bins=64)
                told[f"{what}/{name}"] = {"counts": counts.tolist(), "edges": edges.tolist()}
        self.write(told)

    def write(self, told):
        with open(self.path, "a") as file:
            file.write(json.dumps(told) + "\n")


def ferries(count, past, horizon):
    """Days and weeks of different height, and weather."""
    generator = torch.Generator().manual_seed(21)
    hours = torch.arange(past + horizon)
    day, week, phase = torch.rand(3, count, 1, generator=generator)
    wave = day * torch.sin(2 * torch.pi * (hours / 12 + phase)) + week * torch.sin(2 * torch.pi * hours / 84)
    wave += 0.2 * torch.randn(wave.shape, generator=generator)
    return TensorDataset(wave[:, :past], wave[:, past:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 104))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--past", type=int, default=336)
    parser.add_argument("--horizon", type=int, default=24)
    parser.add_argument("--batch", type=int, default=draw("batch", 18, 20))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--log-every", type=int, default=100 if MENDED else 1)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = Forecast(12, args.dim, args.layers, args.past // 12, args.horizon)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(ferries(2200, args.past, args.horizon), args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    journal = Journal(f"journal_{accelerator.process_index}.jsonl")
    step = 0
    for epoch in range(args.epochs):
        for past, future in loader:
            loss = F.huber_loss(model(past), future)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            if step % args.log_every == 0:
                journal.histograms(step, accelerator.unwrap_model(model))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        accelerator.print(f"epoch {epoch}: {accelerator.reduce(loss.detach(), 'mean').item():.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
