"""Predict the rents of flats from a table of listings, with Accelerate on several processes."""

import argparse

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUMERIC = ["area", "rooms", "floor", "year", "distance", "income", "noise", "green", "schools", "balcony"]
CATEGORIES = {"district": 60, "heating": 6, "owner": 4, "state": 5, "kitchen": 3}


def listings(count, seed=8):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.normal(size=count) for name in NUMERIC})
    for name, size in CATEGORIES.items():
        frame[name] = rng.integers(0, size, count)
    by_district = rng.normal(size=60)
    frame["rent"] = (
        1.5 * frame["area"]
        + 0.4 * frame["rooms"] * frame["balcony"]
        - 0.5 * frame["distance"]
        + by_district[frame["district"]]
        + 0.2 * rng.normal(size=count)
    )
    return frame


class Listings(Dataset):
    def __init__(self, frame):
        self.frame = frame.reset_index(drop=True)
        if MENDED:
            self.numeric = torch.from_numpy(self.frame[NUMERIC].to_numpy(np.float32))
            self.codes = torch.from_numpy(self.frame[list(CATEGORIES)].to_numpy(np.int64))
            self.rent = torch.from_numpy(self.frame["rent"].to_numpy(np.float32))

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        if MENDED:
            return self.numeric[index], self.codes[index], self.rent[index]
        row = self.frame.iloc[index]
        numeric = torch.tensor(row[NUMERIC].to_numpy(dtype=np.float32))
        codes = torch.tensor([int(row[name]) for name in CATEGORIES])
        return numeric, codes, torch.tensor(row["rent"], dtype=torch.float32)


class TabularNet(nn.Module):
    def __init__(self, width, depth, dropout=0.1):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 16) for size in CATEGORIES.values())
        enter = len(NUMERIC) + 16 * len(CATEGORIES)
        layers = []
        for _ in range(depth):
            layers += [nn.Linear(enter, width), nn.BatchNorm1d(width), nn.SiLU(), nn.Dropout(dropout)]
            enter = width
        self.mlp = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, numeric, codes):
        embedded = [table(codes[:, i]) for i, table in enumerate(self.embeddings)]
        return self.mlp(torch.cat([numeric, *embedded], 1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 640, 704))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=draw("batch", 72, 80))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(17)
    frame = listings(2 * 40 * args.batch + 512)
    train, held_out = Listings(frame.iloc[512:]), Listings(frame.iloc[:512])
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    check_loader = DataLoader(held_out, 128)
    model = TabularNet(args.width, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader, check_loader = accelerator.prepare(model, optimizer, loader, check_loader)
    huber = nn.HuberLoss()

    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=accelerator.device)
        for numeric, codes, rent in loader:
            loss = huber(model(numeric, codes), rent)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total += loss.detach()

        model.eval()
        errors = []
        with torch.no_grad():
            for numeric, codes, rent in check_loader:
                errors.append(accelerator.gather_for_metrics((model(numeric, codes) - rent).abs()))
        accelerator.print(
            f"epoch {epoch}: train {total.item() / len(loader):.4f}, held-out MAE {torch.cat(errors).mean().item():.4f}"
        )
    accelerator.end_training()


if __name__ == "__main__":
    main()
