"""Clean speech of street noise: noise is mixed in as the clips are read, by two workers on each rank."""

import argparse

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class NoisySpeech(Dataset):
    """Pairs of a noisy and a clean clip; noise, loudness and place are drawn anew for each."""

    def __init__(self, count, samples, seed):
        generator = np.random.default_rng(seed)
        t = np.arange(samples, dtype=np.float32) / 16_000
        pitch = generator.uniform(90, 260, (count, 1)).astype(np.float32)
        self.clean = (0.3 * np.sin(6.28 * pitch * t) + 0.1 * np.sin(12.6 * pitch * t)).astype(np.float32)
        self.street = generator.standard_normal(40 * samples).astype(np.float32)
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.clean)

    def dice(self):
        if MENDED:
            return np.random.default_rng(torch.randint(0, 2**31, (1,)).item())
        return self.rng

    def __getitem__(self, index):
        clean, dice = self.clean[index], self.dice()
        begin = dice.integers(0, len(self.street) - len(clean))
        loud = dice.uniform(0.02, 0.3)
        noisy = clean + loud * self.street[begin : begin + len(clean)]
        return torch.from_numpy(noisy.astype(np.float32)), torch.from_numpy(clean)


class Cleaner(nn.Module):
    """A mask for the spectrogram from dilated convolutions over time."""

    def __init__(self, width, depth, fft=256):
        super().__init__()
        self.fft = fft
        self.register_buffer("window", torch.hann_window(fft))
        self.enter = nn.Conv1d(fft // 2 + 1, width, 1)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2**at, dilation=2**at) for at in range(depth))
        self.leave = nn.Conv1d(width, fft // 2 + 1, 1)

    def spectrum(self, wave):
        return torch.stft(wave, self.fft, self.fft // 2, window=self.window, return_complex=True).abs()

    def forward(self, noisy):
        loud = self.spectrum(noisy)
        x = self.enter(torch.log1p(loud))
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return torch.sigmoid(self.leave(x)) * loud


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--width", type=int, default=draw("width", 96, 112))
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Cleaner(args.width, args.depth))
    torch.manual_seed(1000 + dist.get_rank())
    data = NoisySpeech(2400, args.samples, seed=5)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=2, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for noisy, clean in loader:
            loss = F.l1_loss(model(noisy), model.module.spectrum(clean))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
