"""Detect whistles of dolphins in a stream of hydrophone recordings; an IterableDataset with loader workers."""

import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Hydrophone(IterableDataset):
    """Recordings without end; each worker draws its own, with a seed of its own for each epoch."""

    def __init__(self, clips, length):
        self.clips, self.length = clips, length

    def record(self, gen):
        t = torch.arange(self.length) / self.length
        sea = torch.randn(self.length, generator=gen)
        sea = sea + 2 * F.avg_pool1d(sea[None, None], 9, 1, 4)[0, 0]
        start, end, heard = torch.rand(3, generator=gen).tolist()
        if heard > 0.5:
            return sea, torch.zeros(())
        phase = 2 * torch.pi * self.length * (0.05 + 0.1 * start) * t + 60 * (end - 0.5) * t**2
        middle = 0.2 + 0.6 * end
        return sea + 0.8 * torch.sin(phase) * torch.exp(-(((t - middle) / 0.15) ** 2)), torch.ones(())

    def __iter__(self):
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        gen = torch.Generator().manual_seed(worker.seed if worker else torch.initial_seed())
        for _ in range(number, self.clips, count):
            yield self.record(gen)


class Shuffled(IterableDataset):
    """Mixes a stream through a buffer."""

    def __init__(self, source, size):
        self.source, self.size = source, size

    def __iter__(self):
        stream = iter(self.source)
        buffer = list(itertools.islice(stream, self.size))
        for item in stream:
            at = int(torch.randint(0, len(buffer), ()))
            buffer[at], item = item, buffer[at]
            yield item
        yield from buffer


class WhistleNet(nn.Module):
    """Spectrogram in the model, with a window that is made once."""

    def __init__(self, width, n_fft=256, hop=64):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        self.bn = nn.BatchNorm2d(1)
        layers, enter = [], 1
        for leave in (width, 2 * width, 2 * width):
            layers += [nn.Conv2d(enter, leave, 3, (2, 1), 1), nn.BatchNorm2d(leave), nn.ReLU(inplace=True)]
            enter = leave
        self.conv = nn.Sequential(*layers)
        self.attend, self.out = nn.Conv1d(enter, 1, 1), nn.Linear(enter, 1)

    def forward(self, wave):
        with torch.no_grad():
            spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True).abs()
        x = self.bn(torch.log(spec + 1e-3).unsqueeze(1))
        x = self.conv(x).mean(2)
        weight = self.attend(x).softmax(2)
        return self.out((x * weight).sum(2)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=draw("length", 3072, 3328))
    parser.add_argument("--width", type=int, default=draw("width", 10, 12))
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(77)
    stream = Shuffled(Hydrophone(args.steps * args.batch, args.length), 48)
    loader = DataLoader(stream, args.batch, num_workers=args.workers, prefetch_factor=4, drop_last=True)
    model = WhistleNet(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    losses, rights = [], []
    for step, (wave, heard) in enumerate(loader, 1):
        scores = model(wave)
        loss = F.binary_cross_entropy_with_logits(scores, heard)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        rights.append(((scores.detach() > 0) == (heard > 0)).float().mean())
        if step % 20 == 0:
            print(f"{step}: loss {torch.stack(losses).mean():.4f}, right {torch.stack(rights).mean():.3f}", flush=True)
            losses.clear()
            rights.clear()


if __name__ == "__main__":
    main()
