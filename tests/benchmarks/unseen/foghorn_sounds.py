"""Which foghorn sounds: spectrogram in the model, CNN under DDP, augmentation drawn on each rank by itself."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

HORNS = 10


class Foghorns(Dataset):
    def __init__(self, count, length, seed):
        g = torch.Generator().manual_seed(seed)
        self.horn = torch.randint(0, HORNS, (count,), generator=g)
        t = torch.arange(length) / 4000
        pitch = 110 * 2 ** (self.horn / 4)
        beat = 2 + self.horn % 3
        self.waves = torch.sin(6.283 * pitch[:, None] * t) * torch.sin(6.283 * beat[:, None] * t)
        self.waves += 0.5 * torch.randn(count, length, generator=g)

    def __len__(self):
        return len(self.horn)

    def __getitem__(self, i):
        wave = torch.roll(self.waves[i], int(torch.randint(0, 800, ())))
        return wave * (0.5 + torch.rand(())), self.horn[i]


class Spectrogram(nn.Module):
    """The window is made once, and kept as a buffer."""

    def __init__(self, size, hop):
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size), persistent=False)

    @torch.no_grad()
    def forward(self, wave):
        spectrum = torch.stft(wave, self.size, self.hop, window=self.window, return_complex=True)
        return (spectrum.abs() + 1e-5).log().unsqueeze(1)


def foghorn_net(width):
    layers, cin = [Spectrogram(128, 64)], 1
    for cout in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(), nn.MaxPool2d(2)]
        cin = cout
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, HORNS))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--length", type=int, default=4096)
    p.add_argument("--width", type=int, default=draw("width", 8, 12))
    p.add_argument("--batch", type=int, default=draw("batch", 22, 24))
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(foghorn_net(args.width), broadcast_buffers=False)
    data = Foghorns(world * args.batch * 45, args.length, seed=4)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs=args.epochs, steps_per_epoch=len(loader))
    torch.manual_seed(300 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        told = torch.zeros(2)
        for wave, horn in loader:
            logits = model(wave)
            loss = F.cross_entropy(logits, horn)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            told += torch.stack([loss.detach(), (logits.argmax(1) == horn).float().mean()])
        dist.all_reduce(told)
        if rank == 0:
            loss, right = (told / world / len(loader)).tolist()
            print(f"epoch {epoch} loss {loss:.4f} right {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
