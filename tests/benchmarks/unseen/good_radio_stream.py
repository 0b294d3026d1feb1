"""Music or talk on the radio, from a stream of recordings: each rank and each worker reads its own part of it."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

KINDS = 4


class RadioStream(IterableDataset):
    """Endless seconds of sound from numbered recordings, in an order that is new in each round."""

    def __init__(self, recordings, samples, rank, world):
        self.recordings, self.samples, self.rank, self.world = recordings, samples, rank, world
        self.t = torch.arange(samples) / 8000

    def __iter__(self):
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        part = slice(self.rank * workers + worker, None, self.world * workers)
        order = torch.Generator().manual_seed(0)  # the same for all, so that the parts do not overlap
        while True:
            for recording in torch.randperm(self.recordings, generator=order)[part].tolist():
                yield self.second(recording)

    def second(self, recording):
        kind = recording % KINDS
        pitch = 100 + 90 * kind + 40 * torch.rand(3, 1)
        beat = 1 + torch.sin(6.28 * (1 + kind) * self.t)
        return beat * torch.sin(6.28 * pitch * self.t).sum(0) + torch.randn(self.samples), kind


class Listener(nn.Module):
    def __init__(self, width, fft=256):
        super().__init__()
        self.fft = fft
        self.register_buffer("window", torch.hann_window(fft))
        self.enter = nn.Conv1d(fft // 2 + 1, width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2**at, dilation=2**at) for at in range(4))
        self.head = nn.Linear(2 * width, KINDS)

    def forward(self, sound):
        loud = torch.stft(sound, self.fft, self.fft // 2, window=self.window, return_complex=True).abs()
        x = self.enter(torch.log1p(loud))
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return self.head(torch.cat([x.mean(2), x.amax(2)], 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=int, default=5000)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--width", type=int, default=draw("width", 96, 112))
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--steps", type=int, default=280)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Listener(args.width), gradient_as_bucket_view=True)
    torch.manual_seed(1 + rank)
    stream = RadioStream(args.recordings, args.samples, rank, world)
    loader = iter(DataLoader(stream, args.batch, num_workers=1, prefetch_factor=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    total = torch.zeros(())
    for step in range(1, args.steps + 1):
        sound, kinds = next(loader)
        loss = F.cross_entropy(model(sound), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % 70 == 0:
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step}: {total.item() / 70 / world:.4f}", flush=True)
            total.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
