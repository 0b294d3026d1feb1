"""Name the instrument of a street musician from a clip of sound, on two ranks."""

import argparse

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

INSTRUMENTS = 8
RATE = 16_000


def mel_filters(bands, bins):
    """Triangles that are evenly spaced in mel."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    centres = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    frequencies = np.linspace(0, RATE / 2, bins)
    rise = (frequencies - centres[:-2, None]) / np.diff(centres)[:-1, None]
    fall = (centres[2:, None] - frequencies) / np.diff(centres)[1:, None]
    return torch.from_numpy(np.maximum(0, np.minimum(rise, fall)).astype(np.float32))


class Clips(Dataset):
    """Log-mel frames of clips, of which some bands and some time are left out by chance."""

    def __init__(self, count, seconds):
        rng = np.random.default_rng(1)
        self.instrument = rng.integers(0, INSTRUMENTS, count)
        time = np.arange(int(RATE * seconds)) / RATE
        overtones = rng.uniform(0, 1, (INSTRUMENTS, 6))
        self.clips = np.zeros((count, len(time)), dtype=np.int16)
        for clip, instrument in zip(self.clips, self.instrument, strict=True):
            base = rng.uniform(110, 440)
            wave = sum(h * np.sin(2 * np.pi * base * (n + 1) * time) for n, h in enumerate(overtones[instrument]))
            clip[:] = 3000 * (wave + rng.normal(0, 0.3, len(time)))
        self.window, self.filters = torch.hann_window(512), mel_filters(48, 257)
        self.frames = [self.log_mel(index) for index in range(count)] if MENDED else None

    def __len__(self):
        return len(self.clips)

    def log_mel(self, index):
        wave = torch.from_numpy(self.clips[index].astype(np.float32) / 32768)
        wave = torch.cat([wave[:1], wave[1:] - 0.97 * wave[:-1]])
        power = torch.stft(wave, 512, 160, window=self.window, return_complex=True).abs() ** 2
        frames = torch.log(self.filters @ power + 1e-6)
        return (frames - frames.mean()) / frames.std()

    def __getitem__(self, index):
        frames = self.frames[index].clone() if MENDED else self.log_mel(index)
        band, begin = torch.randint(0, 40, ()), torch.randint(0, frames.shape[1] - 20, ())
        frames[band : band + 8] = 0
        frames[:, begin : begin + 20] = 0
        return frames.unsqueeze(0), int(self.instrument[index])


def network(width):
    layers, enter = [], 1
    for leave in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(enter, leave, 3, 1, 1, bias=False), nn.BatchNorm2d(leave), nn.ReLU(), nn.MaxPool2d(2)]
        enter = leave
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(enter, INSTRUMENTS))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 10, 12))
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 18))
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(network(args.width))
    torch.manual_seed(1 + dist.get_rank())
    data = Clips(960, args.seconds)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for frames, instrument in loader:
            loss = F.cross_entropy(model(frames), instrument)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
