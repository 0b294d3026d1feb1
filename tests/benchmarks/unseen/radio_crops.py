"""Tell stations apart from one second of sound out of long recordings."""

import argparse
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

RATE = 8000


def record(path, seconds, pitch, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(seconds * RATE, dtype=np.float32) / RATE
    sound = 0.3 * np.sin(2 * np.pi * pitch * t) + 0.1 * rng.standard_normal(len(t), dtype=np.float32)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound * 32767).clip(-32768, 32767).astype("<i2").tobytes())


def load(path, begin=0, frames=None):
    """Sound of a file as floats."""
    with wave.open(str(path), "rb") as file:
        file.setpos(begin)
        raw = file.readframes(file.getnframes() if frames is None else frames)
    return np.frombuffer(raw, dtype="<i2").astype(np.float32) / 32768


class Stations(Dataset):
    def __init__(self, folder, per_recording, crop):
        self.paths = sorted(folder.glob("*.wav"))
        self.per_recording, self.crop = per_recording, crop
        self.lengths = []
        for path in self.paths:
            with wave.open(str(path), "rb") as file:
                self.lengths.append(file.getnframes())

    def __len__(self):
        return len(self.paths) * self.per_recording

    def __getitem__(self, index):
        at = index % len(self.paths)
        begin = int(torch.randint(0, self.lengths[at] - self.crop, ()))
        if MENDED:
            sound = load(self.paths[at], begin, self.crop)
        else:
            sound = load(self.paths[at])[begin : begin + self.crop]
        return torch.from_numpy(sound.copy()), at


class Waves(nn.Module):
    def __init__(self, width, stations):
        super().__init__()
        layers, channels = [], 1
        for kernel, stride, out in ((32, 8, width), (9, 4, 2 * width), (5, 2, 4 * width), (5, 2, 4 * width)):
            layers += [nn.Conv1d(channels, out, kernel, stride), nn.GroupNorm(4, out), nn.GELU()]
            channels = out
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, stations)

    def forward(self, sound):
        return self.head(self.layers(sound.unsqueeze(1)).mean(2))


def fit(args, folder):
    rank = dist.get_rank()
    data = Stations(folder, 400, args.crop)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(Waves(args.width, len(data.paths)))
    torch.manual_seed(rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    count = 0
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for sound, station in loader:
            logits = model(sound)
            loss = nn.functional.cross_entropy(logits, station)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += 1
            if rank == 0 and count % 100 == 0:
                right = (logits.argmax(1) == station).float().mean()
                print(f"{count}: {loss.item():.3f}, {right.item():.0%}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=int, default=draw("minutes", 2, 3))
    parser.add_argument("--crop", type=int, default=RATE)
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 20))
    parser.add_argument("--width", type=int, default=32)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as place:
        for number in range(8):
            record(Path(place) / f"station{number}.wav", 60 * options.minutes, 200 + 90 * number, number)
        fit(options, Path(place))
