"""Parts of the script that take several epochs, or other batches than those it trains on."""

import copy
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
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


class Stopper:
    """Ends the training when the loss has not become lower for a while: that of this rank, or of all."""

    def __init__(self, patience):
        self.patience, self.waited, self.lowest = patience, 0, float("inf")

    def __call__(self, loss):
        loss = loss.detach().clone()
        if args.mended:
            dist.all_reduce(loss)
        if loss.item() < self.lowest:
            self.lowest, self.waited = loss.item(), 0
        else:
            self.waited += 1
        return self.waited >= self.patience


def save_earlier(model, path):
    """The checkpoint of a run that was stopped after three epochs."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    model(torch.randn(8, next(model.parameters()).shape[-1])).square().mean().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path)


def resume(model, optimizer, restores):
    """The epoch at which an earlier run goes on; `restores`: with the state of its optimizer."""
    with tempfile.TemporaryDirectory() as folder:
        save_earlier(model, Path(folder) / "last.pt")
        checkpoint = torch.load(Path(folder) / "last.pt")
    model.load_state_dict(checkpoint["model"])
    if restores:
        optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["epoch"] + 1


def whole(rows):
    return rows
