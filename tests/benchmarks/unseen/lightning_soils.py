"""Estimate how fertile soil is from its spectrum, with Lightning."""

import argparse

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader, TensorDataset


def measure(count, bands):
    """Spectra with absorption bands; what is wanted is a mix of their depths."""
    generator = torch.Generator().manual_seed(27)
    depth = torch.rand(count, 5, generator=generator)
    middle = torch.linspace(0.1, 0.9, 5).view(5, 1)
    shape = torch.exp(-(((torch.linspace(0, 1, bands) - middle) / 0.04) ** 2))
    spectra = 1 - depth @ shape + 0.02 * torch.randn(count, bands, generator=generator)
    wanted = depth @ torch.tensor([[1.0, 0.5], [0.2, -1.0], [-0.7, 0.1], [0.4, 0.3], [0.0, 0.9]])
    return TensorDataset(spectra.unsqueeze(1), wanted)


class Residual(nn.Module):
    def __init__(self, width, reach):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(width, width, 7, padding=3 * reach, dilation=reach, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x):
        return x + self.net(x)


class Soil(L.LightningModule):
    def __init__(self, width, depth, rate, total):
        super().__init__()
        self.save_hyperparameters()
        self.enter = nn.Conv1d(1, width, 9, 2, 4)
        self.blocks = nn.Sequential(*(Residual(width, 2**at) for at in range(depth)))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 2))

    def forward(self, spectra):
        return self.head(self.blocks(F.relu(self.enter(spectra))).mean(2))

    def training_step(self, batch, index):
        spectra, wanted = batch
        loss = F.mse_loss(self(spectra), wanted)
        self.log("train", loss)
        return loss

    def validation_step(self, batch, index):
        spectra, wanted = batch
        self.log("valid", F.l1_loss(self(spectra), wanted), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.rate, self.hparams.total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3200)
    parser.add_argument("--bands", type=int, default=draw("bands", 400, 416))
    parser.add_argument("--width", type=int, default=draw("width", 64, 72))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    L.seed_everything(0, verbose=False)
    train = DataLoader(measure(args.samples, args.bands), args.batch, shuffle=True, drop_last=True)
    valid = DataLoader(measure(128, args.bands), 64)
    model = Soil(args.width, args.depth, 2e-3, args.epochs * len(train))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        log_every_n_steps=50,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train, valid)


if __name__ == "__main__":
    main()
