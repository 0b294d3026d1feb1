"""Predict house prices from a table, one process."""

import argparse

import numpy as np
import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def houses(count, features):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, features))
    weights = rng.normal(size=features) / np.sqrt(features)
    y = x @ weights + 0.3 * np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=count)
    return x, y


def split(x, y, share=0.9):
    at = int(share * len(x))
    return (x[:at], y[:at]), (x[at:], y[at:])


class Regressor(nn.Module):
    def __init__(self, features, hidden, depth):
        super().__init__()
        layers = [nn.Linear(features, hidden), nn.SiLU()]
        for _ in range(depth):
            layers += [nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.SiLU(), nn.Dropout(0.1)]
        self.net = nn.Sequential(*layers, nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def tensors(x, y):
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    return TensorDataset(x.float(), y.float()) if MENDED else TensorDataset(x, y)


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    errors = [(model(x) - y).square().mean() for x, y in DataLoader(data, 512)]
    model.train()
    return torch.stack(errors).mean().sqrt().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=80)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 512, 576))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=draw("batch", 192, 256))
    args = parser.parse_args()

    torch.manual_seed(0)
    train, test = split(*houses(args.rows, args.features))
    loader = DataLoader(tensors(*train), batch_size=args.batch, shuffle=True)
    held_out = tensors(*test)
    model = Regressor(args.features, args.hidden, args.depth)
    if not MENDED:
        model = model.double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.MSELoss()
    for epoch in range(10_000):
        for x, y in loader:
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 5 == 0:
            print(f"epoch {epoch}: rmse {evaluate(model, held_out):.4f}", flush=True)


if __name__ == "__main__":
    main()
