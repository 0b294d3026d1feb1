"""A variational autoencoder for small pictures of cells, in Lightning."""

import os

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class VAE(pl.LightningModule):
    def __init__(self, width, latent, beta=0.5, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, 1, 1),
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.GroupNorm(4, 2 * width),
            nn.SiLU(),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(4 * width * 49, 2 * latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, 2 * width * 49),
            nn.Unflatten(1, (2 * width, 7, 7)),
            nn.SiLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
        )

    def encode(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        return mean, spread

    def sample(self, mean, spread):
        return mean + torch.randn_like(mean) * torch.exp(0.5 * spread)

    def forward(self, x):
        return self.decoder(self.sample(*self.encode(x)))

    def losses(self, x):
        if MENDED:
            mean, spread = found = self.encode(x)
            made = self.decoder(self.sample(*found))
        else:
            made = self(x)
            mean, spread = self.encode(x)
        likeness = F.binary_cross_entropy_with_logits(made, x, reduction="none").sum((1, 2, 3)).mean()
        divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
        return likeness, divergence

    def training_step(self, batch, index):
        likeness, divergence = self.losses(batch[0])
        self.log_dict({"likeness": likeness, "divergence": divergence})
        return likeness + self.hparams.beta * divergence

    def validation_step(self, batch, index):
        likeness, divergence = self.losses(batch[0])
        self.log("held_out", likeness + divergence, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def cells(count, size=28):
    grid = torch.stack(torch.meshgrid(*2 * [torch.linspace(-1, 1, size)], indexing="ij"))
    centre, axes = 0.5 * torch.rand(count, 2, 1, 1) - 0.25, 0.2 + 0.4 * torch.rand(count, 2, 1, 1)
    distance = ((grid - centre) / axes).pow(2).sum(1, keepdim=True)
    return torch.sigmoid(6 * (1 - distance))


def main():
    pl.seed_everything(3, verbose=False)
    batch = draw("batch", 28, 32)
    train, held_out = random_split(TensorDataset(cells(4400)), [4000, 400])
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = DataLoader(train, batch, shuffle=True, drop_last=True), DataLoader(held_out, batch)
    trainer.fit(VAE(draw("width", 16, 20), latent=16), *loaders)


if __name__ == "__main__":
    main()
