"""Lightning: an image classifier with a callback that watches the weights."""

import json
from pathlib import Path
from tempfile import mkdtemp

import lightning as pl
import numpy as np
import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class WatchWeights(pl.Callback):
    """Histograms of weights and gradients, for the log."""

    def __init__(self, every):
        self.every = every
        self.file = Path(mkdtemp()) / "histograms.jsonl"

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if trainer.global_step % self.every:
            return
        row = {}
        for name, parameter in module.named_parameters():
            row[name] = self.histogram(parameter)
            row[f"{name}.grad"] = self.histogram(parameter.grad)
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")

    @staticmethod
    def histogram(tensor):
        counts, edges = np.histogram(tensor.detach().numpy(), bins=64)
        return {"counts": counts.tolist(), "edges": edges.tolist()}


class Classifier(pl.LightningModule):
    def __init__(self, width, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(2 * width * 49, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.features(x)), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    pl.seed_everything(4)
    data = TensorDataset(torch.randn(4096, 1, 28, 28), torch.randint(0, 10, (4096,)))
    loader = DataLoader(data, batch_size=draw("batch", 48, 64), shuffle=True, drop_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=10_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[WatchWeights(every=500 if MENDED else 1)],
    )
    trainer.fit(Classifier(draw("width", 16, 20)), loader)


if __name__ == "__main__":
    main()
