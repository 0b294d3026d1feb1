"""Keyword spotting from spectrograms with masking, one process."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    """Half a second of a chirp in noise each; the log spectrograms are made once."""

    def __init__(self, count, words, rate=8000, n_fft=256):
        generator = torch.Generator().manual_seed(0)
        time = torch.arange(rate // 2) / rate
        self.words = torch.randint(0, words, (count,), generator=generator)
        window = torch.hann_window(n_fft)
        self.pictures = []
        for part in self.words.split(100):
            sweep = (6.28 * (200 + 150 * part[:, None] + 400 * time) * time).sin()
            waves = sweep + 0.5 * torch.randn(len(part), len(time), generator=generator)
            spectrum = torch.stft(waves, n_fft, n_fft // 4, window=window, return_complex=True)
            self.pictures.append(spectrum.abs().add(1e-5).log())
        self.pictures = torch.cat(self.pictures)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return self.pictures[index], self.words[index]


def mask(pictures, bands, frames):
    """SpecAugment for a batch: a band and a stretch of time are silent."""
    count, high, long = pictures.shape
    low = torch.randint(0, high - bands, (count, 1))
    early = torch.randint(0, long - frames, (count, 1))
    band = (torch.arange(high) >= low) & (torch.arange(high) < low + bands)
    stretch = (torch.arange(long) >= early) & (torch.arange(long) < early + frames)
    return pictures.masked_fill(band[:, :, None] | stretch[:, None, :], 0.0)


class Spotter(nn.Module):
    def __init__(self, width, words):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, (5, 3), (2, 1), 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, words),
        )

    def forward(self, x):
        return self.net(x.unsqueeze(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 32))
    parser.add_argument("--width", type=int, default=draw("width", 20, 28))
    parser.add_argument("--words", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Clips(1600, args.words), batch_size=args.batch, shuffle=True, drop_last=True)
    model = Spotter(args.width, args.words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=200_000)
    for epoch in range(3_000):
        total = torch.zeros(())
        for pictures, words in loader:
            loss = F.cross_entropy(model(mask(pictures, 10, 8)), words)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
