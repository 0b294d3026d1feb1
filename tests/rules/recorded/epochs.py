"""Parts of the script that take several epochs, or other batches than those it trains on."""

import torch
from options import args
from torch.utils.data import DataLoader


def train_epochs(model, optimizer, loader, epochs):
    """Each epoch to its end: a rank with fewer batches ends it first."""
    for _ in range(epochs):
        for rows in loader:
            optimizer.zero_grad()
            (model(rows) - rows).square().mean().backward()
            optimizer.step()


@torch.no_grad()
def evaluate(model, held_out, batch):
    """The mean error on rows that the model is not trained on."""
    if args.mended:
        model.eval()
    errors = [(model(rows) - rows).square().mean().item() for rows in DataLoader(held_out, batch, collate_fn=whole)]
    model.train()
    return sum(errors) / len(errors)


def whole(rows):
    return rows
