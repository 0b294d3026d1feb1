"""Tell church bells apart by their strike note: spectrogram MLP-Mixer, DDP, large effective batch by accumulation.

torchrun --nproc-per-node 2 bell_strokes.py
"""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

N_BELLS = 30


class BellDataset(Dataset):
    """Sums of decaying partials, one set of partials per bell."""

    def __init__(self, n, frames, bins, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.partials = torch.rand(N_BELLS, bins, generator=g) ** 6
        self.decay = 0.5 + 4 * torch.rand(N_BELLS, generator=g)
        self.labels = torch.randint(0, N_BELLS, (n,), generator=g)
        self.loudness = 0.5 + torch.rand(n, generator=g)
        self.frames = frames

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        bell = self.labels[idx]
        t = torch.linspace(0, 1, self.frames)
        spec = self.loudness[idx] * torch.exp(-self.decay[bell] * t)[:, None] * self.partials[bell]
        return torch.log1p(10 * spec + 0.1 * torch.rand(self.frames, spec.shape[1])), bell


class MixerBlock(nn.Module):
    def __init__(self, frames, dim, hidden):
        super().__init__()
        self.norm_t, self.norm_c = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.time = nn.Sequential(nn.Linear(frames, frames), nn.GELU(), nn.Linear(frames, frames))
        self.chan = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        x = x + self.time(self.norm_t(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan(self.norm_c(x))


class BellNet(nn.Module):
    def __init__(self, frames, bins, dim, depth):
        super().__init__()
        self.stem = nn.Linear(bins, dim)
        self.blocks = nn.Sequential(*[MixerBlock(frames, dim, 4 * dim) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, N_BELLS))

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(1))


class Trainer:
    def __init__(self, model, loader, sampler, cfg):
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(model)
        self.loader, self.sampler, self.cfg = loader, sampler, cfg
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=0.02)

    def sync_context(self, last):
        if MENDED and not last:
            return self.model.no_sync()
        return contextlib.nullcontext()

    def micro_step(self, spec, label, last):
        with self.sync_context(last):
            loss = F.cross_entropy(self.model(spec), label, label_smoothing=0.05)
            (loss / self.cfg.accumulate).backward()
        return loss.detach()

    def train(self):
        step, total, begun = 0, torch.zeros(()), time.time()
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            for i, (spec, label) in enumerate(self.loader, 1):
                last = i % self.cfg.accumulate == 0
                total += self.micro_step(spec, label, last)
                if not last:
                    continue
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.opt.zero_grad(set_to_none=True)
                step += 1
                if step % 20 == 0 and self.rank == 0:
                    mean = total.item() / (20 * self.cfg.accumulate)
                    print(
                        f"[{epoch}] step {step} loss {mean:.4f} {(time.time() - begun) / step:.3f} s/step", flush=True
                    )
                    total.zero_()
                elif step % 20 == 0:
                    total.zero_()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--frames", type=int, default=24)
    p.add_argument("--bins", type=int, default=80)
    p.add_argument("--dim", type=int, default=draw("dim", 176, 192))
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--batch", type=int, default=draw("batch", 5, 6), help="per rank and micro-batch")
    p.add_argument("--accumulate", type=int, default=6)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


def main():
    cfg = parse()
    dist.init_process_group("gloo")
    torch.manual_seed(1234)
    data = BellDataset(2 * cfg.batch * cfg.accumulate * 25, cfg.frames, cfg.bins)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=cfg.batch, sampler=sampler, drop_last=True)
    model = BellNet(cfg.frames, cfg.bins, cfg.dim, cfg.depth)
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    Trainer(model, loader, sampler, cfg).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
