"""A GAN on small pictures in Lightning, with manual optimisation of two optimizers."""

import os

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        self.enter = nn.Linear(noise, 4 * width * 16)
        self.layers = nn.Sequential(
            nn.Unflatten(1, (4 * width, 4, 4)),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.layers(self.enter(z))


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.GroupNorm(4, 2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(4 * width * 16, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(1)


class GAN(pl.LightningModule):
    def __init__(self, noise, width, lr=2e-4):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator, self.discriminator = Generator(noise, width), Discriminator(width)

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch, index):
        (real,) = batch
        of_generator, of_discriminator = self.optimizers()

        self.toggle_optimizer(of_discriminator)
        fake = self(torch.randn(len(real), self.hparams.noise)).detach()
        judged_real, judged_fake = self.discriminator(torch.cat([real, fake])).chunk(2)
        loss_d = F.softplus(-judged_real).mean() + F.softplus(judged_fake).mean()
        of_discriminator.zero_grad()
        self.manual_backward(loss_d)
        of_discriminator.step()
        self.untoggle_optimizer(of_discriminator)

        self.toggle_optimizer(of_generator)
        judged = self.discriminator(self(torch.randn(len(real), self.hparams.noise)))
        loss_g = F.softplus(-judged).mean()
        of_generator.zero_grad()
        self.manual_backward(loss_g)
        of_generator.step()
        self.untoggle_optimizer(of_generator)
        self.log_dict({"d": loss_d.detach(), "g": loss_g.detach()}, on_step=False, on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        of_generator = torch.optim.Adam(self.generator.parameters(), lr=self.hparams.lr, betas=(0.5, 0.999))
        of_discriminator = torch.optim.Adam(self.discriminator.parameters(), lr=self.hparams.lr, betas=(0.5, 0.999))
        return [of_generator, of_discriminator]


def rings(count):
    grid = torch.stack(torch.meshgrid(*2 * [torch.linspace(-1, 1, 32)], indexing="ij"))
    centre, radius = 0.6 * torch.rand(count, 2, 1, 1) - 0.3, 0.2 + 0.4 * torch.rand(count, 1, 1)
    distance = (grid - centre).norm(dim=1)
    return (2 * torch.exp(-(((distance - radius) / 0.08) ** 2)) - 1).unsqueeze(1)


def main():
    pl.seed_everything(7, verbose=False)
    loader = DataLoader(TensorDataset(rings(4000)), batch_size=draw("batch", 24, 32), shuffle=True, drop_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        strategy="ddp_find_unused_parameters_true",
        max_epochs=100_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GAN(noise=64, width=draw("width", 12, 16)), loader)


if __name__ == "__main__":
    main()
