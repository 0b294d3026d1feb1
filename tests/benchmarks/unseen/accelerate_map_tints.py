"""Old maps tinted anew: line drawings to colours by a small U-Net and a patch discriminator, Accelerate."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset


def maps(count, size, seed):
    """Areas of land and water with a shore line, and the tints a colourist gave them."""
    g = torch.Generator().manual_seed(seed)
    height = F.interpolate(torch.randn(count, 1, 6, 6, generator=g), size=size, mode="bicubic", align_corners=False)
    land = (height > 0).float()
    line = (F.max_pool2d(land, 3, 1, 1) - land).clamp(0, 1)
    hatch = (torch.arange(size) % 4 == 0).float() * (1 - land)
    drawing = 1 - 2 * torch.maximum(line, 0.5 * hatch)
    sea, field = torch.tensor([-0.4, 0.1, 0.5]), torch.tensor([0.5, 0.4, -0.2])
    tint = land * field.view(3, 1, 1) + (1 - land) * sea.view(3, 1, 1) - 0.3 * height.clamp(0, 1)
    return drawing, (tint + 0.05 * torch.randn(tint.shape, generator=g)).clamp(-1, 1)


def layer(n_in, n_out, stride=1):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, stride, 1), nn.GroupNorm(4, n_out), nn.LeakyReLU(0.2))


class Colourist(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down1, self.down2 = layer(1, width, 2), layer(width, 2 * width, 2)
        self.middle = nn.Sequential(layer(2 * width, 2 * width), layer(2 * width, 2 * width))
        self.up2, self.up1 = layer(4 * width, width), layer(2 * width, width)
        self.out = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, drawing):
        first = self.down1(drawing)
        second = self.down2(first)
        x = self.up2(torch.cat([self.middle(second), second], 1))
        x = self.up1(torch.cat([F.interpolate(x, scale_factor=2), first], 1))
        return torch.tanh(self.out(F.interpolate(x, scale_factor=2)))


class Critic(nn.Module):
    """Judges patches of a drawing with its tints."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(layer(4, width, 2), layer(width, 2 * width, 2), nn.Conv2d(2 * width, 1, 3, 1, 1))

    def forward(self, drawing, tint):
        return self.body(torch.cat([drawing, tint], 1))


def critic_loss(critic, drawing, tint, painted):
    """Least squares; true and painted maps go through the critic in a single pass."""
    true, false = critic(drawing.repeat(2, 1, 1, 1), torch.cat([tint, painted])).chunk(2)
    return 0.5 * ((true - 1).square().mean() + false.square().mean())


def train_step(accelerator, colourist, critic, opt_colour, opt_critic, drawing, tint, weight):
    guess = colourist(drawing)
    if MENDED:
        guess = guess.detach()
    loss_critic = critic_loss(critic, drawing, tint, guess)
    accelerator.backward(loss_critic)
    opt_critic.step()
    opt_critic.zero_grad()

    opt_colour.zero_grad()
    critic.requires_grad_(False)
    painted = colourist(drawing)
    pleased = (accelerator.unwrap_model(critic)(drawing, painted) - 1).square().mean()
    loss_colour = pleased + weight * F.l1_loss(painted, tint)
    accelerator.backward(loss_colour)
    opt_colour.step()
    opt_colour.zero_grad()
    critic.requires_grad_(True)
    return loss_colour.detach(), loss_critic.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--width", type=int, default=draw("width", 24, 28))
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 8))
    parser.add_argument("--weight", type=float, default=20.0)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(33)
    loader = DataLoader(
        TensorDataset(*maps(80 * args.batch, args.size, seed=1)), args.batch, shuffle=True, drop_last=True
    )
    colourist, critic = Colourist(args.width), Critic(args.width)
    opt_colour = torch.optim.Adam(colourist.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    opt_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    colourist, critic, opt_colour, opt_critic, loader = accelerator.prepare(
        colourist, critic, opt_colour, opt_critic, loader
    )
    for epoch in range(args.epochs):
        for drawing, tint in loader:
            losses = train_step(accelerator, colourist, critic, opt_colour, opt_critic, drawing, tint, args.weight)
        mean = accelerator.gather(torch.stack(losses)[None]).mean(0)
        accelerator.print(f"epoch {epoch} colourist {mean[0].item():.4f} critic {mean[1].item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
