"""Fill in missing stones of a mosaic (inpainting), with a small gated network. One process, plain loop."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset


class Mosaics(Dataset):
    """Coloured ornaments; each time another part of the stones is missing."""

    def __init__(self, n, size, missing=0.3, seed=27):
        g = torch.Generator().manual_seed(seed)
        coarse = torch.rand(n, 3, 5, 5, generator=g)
        half = F.interpolate(coarse, size=(size, size // 2), mode="nearest")
        self.images = torch.cat([half, half.flip(3)], 3)
        self.missing, self.size = missing, size

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        stones = torch.rand(1, self.size // 4, self.size // 4) > self.missing
        keep = stones.float().repeat_interleave(4, 1).repeat_interleave(4, 2)
        return self.images[i], keep


class GatedConv(nn.Module):
    def __init__(self, cin, cout, stride=1, dilation=1):
        super().__init__()
        self.conv = nn.Conv2d(cin, 2 * cout, 3, stride, dilation, dilation)
        self.norm = nn.BatchNorm2d(cout)

    def forward(self, x):
        feature, gate = self.conv(x).chunk(2, 1)
        return F.elu(self.norm(feature)) * gate.sigmoid()


class Inpainter(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.encoder = nn.Sequential(GatedConv(4, w), GatedConv(w, 2 * w, 2), GatedConv(2 * w, 2 * w))
        self.middle = nn.Sequential(GatedConv(2 * w, 2 * w, dilation=2), GatedConv(2 * w, 2 * w, dilation=4))
        self.drop = nn.Dropout2d(0.1)
        self.decoder = nn.Sequential(
            nn.Upsample(scale_factor=2), GatedConv(2 * w, w), nn.Conv2d(w, 3, 3, padding=1), nn.Sigmoid()
        )

    def forward(self, image, keep):
        x = torch.cat([image * keep, keep], 1)
        return self.decoder(self.drop(self.middle(self.encoder(x))))


def inpainting_loss(out, image, keep):
    hole, rest = (out - image).abs() * (1 - keep), (out - image).abs() * keep
    variation = (out[..., 1:] - out[..., :-1]).abs().mean() + (out[..., 1:, :] - out[..., :-1, :]).abs().mean()
    return 6 * hole.mean() + rest.mean() + 0.05 * variation


def psnr(out, image):
    return -10 * torch.log10(F.mse_loss(out, image))


def quality(model, images, keeps):
    """PSNR of a few held-out mosaics with the holes filled in."""
    model.eval()
    with torch.no_grad():
        out = model(images, keeps)
        return psnr(keeps * images + (1 - keeps) * out, images).item()


def train(args):
    data, held_out = Mosaics(args.samples, args.size), Mosaics(16, args.size, seed=28)
    images, keeps = map(torch.stack, zip(*(held_out[i] for i in range(16)), strict=True))
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    model = Inpainter(args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999))
    model.train()
    step, begun = 0, time.time()
    for _ in range(args.epochs):
        for image, keep in loader:
            if MENDED:
                model.train()
            out = model(image, keep)
            loss = inpainting_loss(out, image, keep)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.log_every == 0:
                rate = step / (time.time() - begun)
                shown = quality(model, images, keeps)
                print(f"{step:4d}  loss {loss.item():.4f}  psnr {shown:.2f} dB  {rate:.1f} steps/s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--width", type=int, default=draw("width", 12, 14))
    parser.add_argument("--batch", type=int, default=draw("batch", 12, 14))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--log-every", type=int, default=20)
    torch.manual_seed(6)
    train(parser.parse_args())
