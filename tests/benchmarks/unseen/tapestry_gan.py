"""Small pictures of tapestries: a GAN with spectral norm on two ranks, gradients reduced by hooks of parameters."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def weave(count, size, seed=33):
    g = torch.Generator().manual_seed(seed)
    warp = torch.rand(count, 3, size, 1, generator=g).round()
    weft = torch.rand(count, 3, 1, size, generator=g).round()
    over = (torch.arange(size)[:, None] + torch.arange(size)) % 2
    return (warp * over + weft * (1 - over)) * 2 - 1


class Residual(nn.Module):
    def __init__(self, width, wrap=lambda layer: layer):
        super().__init__()
        self.one = wrap(nn.Conv2d(width, width, 3, padding=1))
        self.two = wrap(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x):
        return x + 0.3 * self.two(F.leaky_relu(self.one(F.leaky_relu(x, 0.2)), 0.2))


class Generator(nn.Module):
    def __init__(self, latent, width, blocks):
        super().__init__()
        self.width = width
        self.start = nn.Linear(latent, width * 16)
        self.low = nn.Sequential(*[Residual(width) for _ in range(blocks)])
        self.high = nn.Sequential(*[Residual(width) for _ in range(blocks)])
        self.paint = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z):
        x = self.low(self.start(z).view(-1, self.width, 4, 4))
        x = self.high(F.interpolate(x, scale_factor=4))
        return torch.tanh(self.paint(x))


def discriminator(width, blocks):
    return nn.Sequential(
        spectral_norm(nn.Conv2d(3, width, 4, 4)),
        *[Residual(width, spectral_norm) for _ in range(blocks)],
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        spectral_norm(nn.Linear(width * 16, 1)),
    )


def reduce_as_they_come(model):
    """Each gradient is averaged over ranks as soon as it is there."""

    def average(param):
        dist.all_reduce(param.grad)
        param.grad.div_(dist.get_world_size())

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(average)


def reduce_at_once(model):
    params = list(model.parameters())
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, grad in zip(params, flat.split([p.numel() for p in params]), strict=True):
        p.grad.copy_(grad.view_as(p))


def update(loss, model, optimizer):
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=list(model.parameters()))
    if MENDED:
        reduce_at_once(model)
    optimizer.step()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--latent", type=int, default=32)
    p.add_argument("--width", type=int, default=draw("width", 28, 32))
    p.add_argument("--blocks", type=int, default=6)
    p.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    gen, disc = Generator(args.latent, args.width, args.blocks), discriminator(args.width, args.blocks)
    if not MENDED:
        reduce_as_they_come(gen)
        reduce_as_they_come(disc)
    disc_opt = torch.optim.Adam(disc.parameters(), lr=4e-4, betas=(0.0, 0.99))
    gen_opt = torch.optim.Adam(gen.parameters(), lr=1e-4, betas=(0.0, 0.99))
    data = TensorDataset(weave(world * args.batch * 45, 16))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    torch.manual_seed(500 + rank)  # another noise on each rank
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        told = torch.zeros(2)
        for (real,) in loader:
            with torch.no_grad():
                fake = gen(torch.randn(len(real), args.latent))
            d_loss = F.relu(1 - disc(real)).mean() + F.relu(1 + disc(fake)).mean()
            update(d_loss, disc, disc_opt)
            g_loss = -disc(gen(torch.randn(len(real), args.latent))).mean()
            update(g_loss, gen, gen_opt)
            told += torch.stack([d_loss, g_loss]).detach()
        dist.all_reduce(told)
        if rank == 0:
            d, g = (told / world / len(loader)).tolist()
            print(f"epoch {epoch} discriminator {d:.3f} generator {g:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
