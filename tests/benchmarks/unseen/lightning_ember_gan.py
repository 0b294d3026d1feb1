"""Pictures of glowing embers by a GAN: relativistic loss, two optimizers that are stepped by hand, Lightning."""

import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

SIDE = 32


class Embers(Dataset):
    """Coals that glow at their cracks, as a single tensor; a batch is taken by one look-up."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)

        def field(cells):
            noise = torch.randn(count, 1, cells, cells, generator=g)
            return F.interpolate(noise, size=SIDE, mode="bicubic", align_corners=False)

        crack = torch.exp(-8 * field(7).square())
        heat = crack * (0.5 + 0.5 * field(3).sigmoid())
        colour = torch.cat([heat, heat**2, heat**5], 1)
        self.pictures = (2 * colour - 1 + 0.02 * torch.randn(count, 3, SIDE, SIDE, generator=g)).clamp(-1, 1)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, rows):
        return self.pictures[rows]


class Bellows(nn.Module):
    """From noise to a picture: pixels are shuffled out of channels, so convolutions run on small maps."""

    def __init__(self, noise, width):
        super().__init__()
        self.width = width
        self.first = nn.Linear(noise, 4 * width * 64)
        self.body = nn.Sequential(
            nn.GroupNorm(8, 4 * width),
            nn.SiLU(),
            nn.Conv2d(4 * width, 8 * width, 3, 1, 1),
            nn.PixelShuffle(2),
            nn.GroupNorm(8, 2 * width),
            nn.SiLU(),
            nn.Conv2d(2 * width, 12, 3, 1, 1),
            nn.PixelShuffle(2),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.body(self.first(z).view(len(z), 4 * self.width, 8, 8))


def expert(width):
    rows = []
    for n_in, n_out in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        rows += [spectral_norm(nn.Conv2d(n_in, n_out, 4, 2, 1)), nn.LeakyReLU(0.2)]
    return nn.Sequential(*rows, nn.Flatten(), spectral_norm(nn.Linear(4 * width * 16, 1)))


class EmberGAN(L.LightningModule):
    def __init__(self, noise, width, lr_bellows=1e-3, lr_expert=8e-5):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.bellows, self.expert = Bellows(noise, width), expert(width)

    def configure_optimizers(self):
        settings = {"betas": (0.0, 0.99), "fused": True}
        return [
            torch.optim.Adam(self.expert.parameters(), lr=self.hparams.lr_expert, **settings),
            torch.optim.Adam(self.bellows.parameters(), lr=self.hparams.lr_bellows, **settings),
        ]

    def noise(self, count):
        return torch.randn(count, self.hparams.noise, device=self.device)

    def follow(self, optimizer, loss):
        """A step down one of the two losses, with no gradient left behind."""
        self.manual_backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    def training_step(self, real, batch_idx):
        of_expert, of_bellows = self.optimizers()

        self.toggle_optimizer(of_expert)
        with torch.no_grad():
            fake = self.bellows(self.noise(len(real)))
        yes, no = self.expert(torch.cat([real, fake])).chunk(2)
        expert_loss = F.softplus(no - yes).mean()
        self.follow(of_expert, expert_loss)
        self.untoggle_optimizer(of_expert)

        self.toggle_optimizer(of_bellows)
        with torch.no_grad():
            yes = self.expert(real)
        no = self.expert(self.bellows(self.noise(len(real))))
        bellows_loss = F.softplus(yes - no).mean()
        self.follow(of_bellows, bellows_loss)
        self.untoggle_optimizer(of_bellows)
        if batch_idx % 20 == 19:
            self.log_dict({"expert": expert_loss.detach(), "bellows": bellows_loss.detach()})

    def on_train_epoch_end(self):
        with torch.no_grad():
            shown = self.bellows(self.noise(32))
        figures = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        print(f"epoch {self.current_epoch} {figures} spread {shown.std(0).mean().item():.3f}", flush=True)


def main():
    L.seed_everything(74)
    batch = draw("batch", 28, 32)
    embers = Embers(60 * batch, seed=1)
    batches = BatchSampler(RandomSampler(embers), batch, drop_last=True)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(EmberGAN(noise=48, width=draw("width", 24, 28)), DataLoader(embers, batch_size=None, sampler=batches))


if __name__ == "__main__":
    main()
