"""Run as `python -m package`, from the folder that holds it."""

import argparse

import ending
import torch
import weights

from . import model as models


def main():
    parser = argparse.ArgumentParser(prog="package")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = models.build(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, args.steps + 1):
        ending.at(step)
        loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 16)), torch.randint(0, 4, (32,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights.show(model.parameters())


if __name__ == "__main__":
    main()
