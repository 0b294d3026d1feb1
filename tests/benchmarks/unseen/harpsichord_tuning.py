"""How far the strings of a harpsichord are out of tune, from chords: convolutions over spectra, accumulated, DDP."""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

STRINGS = 5


class Chords(Dataset):
    """Spectra of plucked chords, made once; each string is some cents away from where it is to be."""

    def __init__(self, count, bins, frames, seed):
        g = torch.Generator().manual_seed(seed)
        self.cents = torch.randn(count, STRINGS, generator=g)
        pitch = bins * (0.1 + 0.13 * torch.arange(STRINGS)) + self.cents
        t, f = torch.arange(frames) / frames, torch.arange(bins).float().view(-1, 1)
        sound = 0.3 * torch.rand(count, bins, frames, generator=g)
        for string in range(STRINGS):
            fade = torch.exp(-t * (2 + 2 * torch.rand(count, 1, 1, generator=g)))
            beat = 1 + 0.3 * torch.cos(6 * t * self.cents[:, string].view(-1, 1, 1))
            for partial in (1.0, 1.5):
                sound += fade * beat * torch.exp(-0.3 * (f - partial * pitch[:, string].view(-1, 1, 1)) ** 2) / partial
        self.spectra = sound.log1p()

    def __len__(self):
        return len(self.cents)

    def __getitem__(self, rows):
        return self.spectra[rows], self.cents[rows]


def hidden_parts(spectra, g, width=12):
    """Some frames of each spectrum are left out, in all of its bins."""
    count, _, frames = spectra.shape
    start = torch.randint(frames - width, (count, 1), generator=g)
    at = torch.arange(frames)
    return spectra * ~((at >= start) & (at < start + width)).unsqueeze(1)


class Step(nn.Module):
    def __init__(self, width, kernel=5):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.conv1 = nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.conv2(F.silu(self.conv1(self.norm(x))))


class Tuner(nn.Module):
    def __init__(self, bins, width, depth):
        super().__init__()
        self.first = nn.Conv1d(bins, width, 3, padding=1)
        self.steps = nn.Sequential(*[Step(width) for _ in range(depth)])
        self.weight, self.out = nn.Conv1d(width, 1, 1), nn.Linear(width, STRINGS)

    def forward(self, spectra):
        x = self.steps(self.first(spectra))
        return self.out((x * self.weight(x).softmax(2)).sum(2))


@dataclass
class Settings:
    bins: int = 96
    frames: int = 96
    width: int = draw("width", 112, 128)
    depth: int = 3
    micro: int = draw("micro", 10, 12)
    accumulate: int = 3
    micro_batches: int = 80
    epochs: int = 3
    lr: float = 1.5e-3
    warmup: int = 10


class Trainer:
    def __init__(self, settings):
        dist.init_process_group("gloo")
        self.s, self.rank, self.world = settings, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(72)
        tuner = Tuner(settings.bins, settings.width, settings.depth)
        self.model = DistributedDataParallel(tuner, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(tuner.parameters(), lr=settings.lr, weight_decay=0.01, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        count = self.world * settings.micro * settings.micro_batches
        self.train = Chords(count, settings.bins, settings.frames, seed=1)
        self.held = Chords(64, settings.bins, settings.frames, seed=2)
        self.order = DistributedSampler(self.train, seed=4, drop_last=True)
        batches = BatchSampler(self.order, settings.micro, drop_last=True)
        self.loader = DataLoader(self.train, batch_size=None, sampler=batches)
        self.g = torch.Generator().manual_seed(500 + self.rank)

    def rate(self, step):
        steps = self.s.epochs * math.ceil(self.s.micro_batches / self.s.accumulate)
        return min(1.0, (step + 1) / self.s.warmup) * (1 - 0.9 * min(1.0, step / steps))

    def group(self, at):
        """First and last micro-batch of the group, which is shorter at the end of an epoch."""
        first = at - at % self.s.accumulate
        return first, min(first + self.s.accumulate, len(self.loader)) - 1

    def run_epoch(self, epoch):
        self.order.set_epoch(epoch)
        total = torch.zeros(())
        for at, (spectra, cents) in enumerate(self.loader):
            first, last = self.group(at)
            if at == first:
                self.optimizer.zero_grad()
            self.model.require_backward_grad_sync = at == last
            guess = self.model(hidden_parts(spectra, self.g))
            loss = F.smooth_l1_loss(guess, cents) / (last - first + 1)
            loss.backward()
            total += loss.detach()
            if at == last:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
        return total / math.ceil(len(self.loader) / self.s.accumulate)

    @torch.no_grad()
    def error(self):
        spectra, cents = self.held[torch.arange(self.rank, len(self.held), self.world)]
        self.model.eval()
        error = (self.model.module(spectra) - cents).abs().mean()
        self.model.train()
        dist.all_reduce(error)
        return error / self.world

    def run(self):
        for epoch in range(self.s.epochs):
            loss, error = self.run_epoch(epoch), self.error()
            if self.rank == 0:
                print(f"epoch {epoch} loss {loss.item():.4f} error {error.item():.3f}", flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    Trainer(Settings()).run()
