"""Recognise commands in noisy rooms: clean speech is put into a random room ahead of the network."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

RATE, COMMANDS = 8000, 12


class Commands(Dataset):
    def __init__(self, count, seconds):
        generator = torch.Generator().manual_seed(2)
        self.labels = torch.randint(0, COMMANDS, (count,), generator=generator)
        t = torch.arange(int(RATE * seconds)) / RATE
        tone = torch.sin(2 * torch.pi * (200 + 90 * self.labels[:, None]) * t)
        self.waves = tone * torch.rand(count, 1, generator=generator) + 0.1 * torch.randn(
            count, len(t), generator=generator
        )

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.waves[index], self.labels[index]


def impulse_responses(count, taps):
    """Decaying noise, as of small rooms."""
    t = torch.arange(taps) / RATE
    decay = 0.05 + 0.1 * torch.rand(count, 1)
    responses = torch.randn(count, taps) * torch.exp(-t / decay)
    responses[:, 0] = 3
    return responses / responses.norm(dim=1, keepdim=True)


class Reverb:
    """Each wave of a batch gets a room of its own."""

    def __init__(self, rooms, taps):
        self.responses = impulse_responses(rooms, taps)

    def __call__(self, waves):
        rooms = self.responses[torch.randint(len(self.responses), (len(waves),))]
        if MENDED:
            size = waves.shape[1] + rooms.shape[1]
            return torch.fft.irfft(torch.fft.rfft(waves, size) * torch.fft.rfft(rooms, size), size)[:, : waves.shape[1]]
        padded = F.pad(waves, (rooms.shape[1] - 1, 0))
        return F.conv1d(padded.unsqueeze(0), rooms.flip(1).unsqueeze(1), groups=len(waves)).squeeze(0)


class Recogniser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.layers = nn.Sequential(
            nn.Conv1d(129, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(width, COMMANDS),
        )

    def forward(self, waves):
        spectrum = torch.stft(waves, 256, 80, window=self.window, return_complex=True).abs()
        return self.layers(torch.log1p(spectrum))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--width", type=int, default=draw("width", 112, 128))
    parser.add_argument("--taps", type=int, default=3200)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(Commands(1600, 1.0), args.batch, shuffle=True, drop_last=True)
    reverb, model = Reverb(200, args.taps), Recogniser(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        right = 0
        for waves, labels in loader:
            logits = model(reverb(waves))
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (logits.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: {loss.item():.3f}, right {right / (len(loader) * args.batch):.3f}", flush=True)


if __name__ == "__main__":
    main()
