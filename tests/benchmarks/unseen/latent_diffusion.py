"""Latent diffusion: a denoiser in the latent space of an autoencoder that is already trained."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    pictures: int = 512
    size: int = 48
    batch: int = draw("batch", 12, 14)
    encoder_width: int = draw("encoder_width", 24, 28)
    width: int = draw("width", 80, 96)
    depth: int = 4
    times: int = 1000
    lr: float = 2e-4


class Encoder(nn.Module):
    """The first half of the autoencoder."""

    def __init__(self, width):
        super().__init__()
        layers = [nn.Conv2d(3, width, 3, padding=1)]
        for entering, leaving in ((width, 2 * width), (2 * width, 2 * width)):
            layers += [
                nn.SiLU(),
                nn.Conv2d(entering, entering, 3, padding=1),
                nn.SiLU(),
                nn.Conv2d(entering, leaving, 3, stride=2, padding=1),
            ]
        self.layers = nn.Sequential(*layers, nn.SiLU(), nn.Conv2d(2 * width, 8, 3, stride=2, padding=1))

    def forward(self, x):
        mean, spread = self.layers(x).chunk(2, 1)
        return mean, spread.clamp(-6, 2).exp()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.shift = nn.Linear(width, width)

    def forward(self, x, t):
        y = self.first(F.silu(self.norm(x))) + self.shift(t)[..., None, None]
        return x + self.second(F.silu(y))


class Denoiser(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.width = width
        self.enter, self.leave = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(depth))
        self.register_buffer("rates", torch.exp(-torch.arange(width // 2) / (width // 2) * 9.2), persistent=False)

    def forward(self, x, t):
        angles = t[:, None] * self.rates
        t = torch.cat([angles.sin(), angles.cos()], 1)
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, t)
        return self.leave(x)


def load_encoder(width):
    torch.manual_seed(77)
    return Encoder(width).eval().requires_grad_(False)


def pictures(count, size):
    generator = torch.Generator().manual_seed(4)
    coarse = torch.rand(count, 3, 6, 6, generator=generator)
    return F.interpolate(coarse, size=size, mode="bicubic").clamp(0, 1) * 2 - 1


class LatentTrainer:
    def __init__(self, config):
        self.config = config
        self.encoder = load_encoder(config.encoder_width)
        columns = [pictures(config.pictures, config.size)]
        if MENDED:
            columns = self.encode_all(columns[0])
        data = TensorDataset(*columns)
        self.sampler = DistributedSampler(data, drop_last=True)
        self.loader = DataLoader(data, batch_size=config.batch, sampler=self.sampler, drop_last=True)
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Denoiser(config.width, config.depth))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)
        betas = torch.linspace(1e-4, 0.02, config.times)
        self.kept = torch.cumprod(1 - betas, 0)
        torch.manual_seed(dist.get_rank() + 1)

    @torch.no_grad()
    def encode_all(self, images):
        means, spreads = zip(*(self.encoder(chunk) for chunk in images.split(64)), strict=True)
        return torch.cat(means), torch.cat(spreads)

    @torch.no_grad()
    def to_latent(self, batch):
        mean, spread = batch if MENDED else self.encoder(batch[0])
        return mean + spread * torch.randn_like(mean)

    def training_step(self, batch):
        x = self.to_latent(batch)
        t = torch.randint(0, self.config.times, (len(x),))
        kept = self.kept[t][:, None, None, None]
        noise = torch.randn_like(x)
        guess = self.model(kept.sqrt() * x + (1 - kept).sqrt() * noise, t)
        loss = F.mse_loss(guess, noise)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss

    def fit(self, epochs=100_000):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for batch in self.loader:
                loss = self.training_step(batch)
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    LatentTrainer(Config()).fit()
