"""Paint brush strokes: a GAN in the style of DCGAN, with a sheet of samples to look at."""

import argparse
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from PIL import Image


def painter(noise, width):
    return nn.Sequential(
        nn.ConvTranspose2d(noise, 4 * width, 4, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(True),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(True),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    )


def critic(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(4 * width, 1, 4),
        nn.Flatten(0),
    )


def strokes(count):
    """Slanted bars in two colours."""
    generator = torch.Generator().manual_seed(2)
    row, column = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
    slope, colour = torch.randn(count, 1, 1, generator=generator), torch.rand(count, 3, 1, 1, generator=generator)
    bar = torch.exp(-20 * (row - slope * column) ** 2).unsqueeze(1)
    return 2 * bar * colour - 1


@torch.no_grad()
def save_sheet(model, fixed, path):
    """All samples of the fixed noise on one sheet, large enough to see them."""
    model.eval()
    pictures = model(fixed)
    model.train()
    side = int(len(fixed) ** 0.5)
    sheet = pictures.unflatten(0, (side, side)).permute(0, 3, 1, 4, 2).reshape(side * 32, side * 32, 3)
    sheet = ((sheet + 1) * 127.5).byte().numpy()
    Image.fromarray(sheet).resize((side * 96, side * 96), Image.Resampling.BICUBIC).save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 28, 32))
    parser.add_argument("--noise", type=int, default=64)
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 28))
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--sheets", type=Path, default=Path("sheets"))
    parser.add_argument("--sheet-every", type=int, default=100 if MENDED else 8)
    args = parser.parse_args()

    torch.manual_seed(0)
    args.sheets.mkdir(exist_ok=True)
    real = strokes(1500)
    paint, judge = painter(args.noise, args.width), critic(args.width)
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_paint = torch.optim.Adam(paint.parameters(), lr=2e-4, betas=(0.5, 0.999))
    fixed = torch.randn(64, args.noise, 1, 1)
    for step in range(args.steps):
        fake = paint(torch.randn(args.batch, args.noise, 1, 1))
        shown = real[torch.randint(0, len(real), (args.batch,))]
        wrong = F.softplus(-judge(shown)).mean() + F.softplus(judge(fake.detach())).mean()
        of_judge.zero_grad()
        wrong.backward()
        of_judge.step()
        fooled = F.softplus(-judge(fake)).mean()
        of_paint.zero_grad()
        fooled.backward()
        of_paint.step()
        if step % args.sheet_every == 0:
            save_sheet(paint, fixed, args.sheets / f"{step:06d}.png")
        if step % 50 == 0:
            print(f"step {step}: judge {wrong.item():.3f}, painter {fooled.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
