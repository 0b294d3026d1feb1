"""Vision transformer with dropout and stochastic depth for a bird atlas, sharded with fully_shard."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SPECIES = 20


class Birds(Dataset):
    def __init__(self, n, size, seed, noise=0.6):
        prototypes = torch.randn(SPECIES, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        prototypes = F.interpolate(prototypes, size=size, mode="bicubic")
        g = torch.Generator().manual_seed(seed)
        self.species = torch.randint(0, SPECIES, (n,), generator=g)
        shifts = torch.randint(-4, 5, (n, 2), generator=g).tolist()
        images = [torch.roll(prototypes[s], tuple(d), (1, 2)) for s, d in zip(self.species, shifts, strict=True)]
        self.images = torch.stack(images) + noise * torch.randn(n, 3, size, size, generator=g)

    def __len__(self):
        return len(self.species)

    def __getitem__(self, i):
        return self.images[i], self.species[i]


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        keep = torch.rand(len(x), 1, 1) >= self.p
        return x * keep / (1 - self.p)


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, drop, path):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout=drop, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(drop), nn.Linear(4 * dim, dim))
        self.path = DropPath(path)

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.path(self.attn(y, y, y, need_weights=False)[0])
        return x + self.path(self.mlp(self.ln2(x)))


class ViT(nn.Module):
    def __init__(self, size, patch, dim, depth, heads, drop=0.1):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, dim))
        self.blocks = nn.ModuleList(EncoderBlock(dim, heads, drop, 0.1 * i / depth) for i in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, SPECIES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    seen = torch.zeros(3)
    for image, species in loader:
        logits = model(image)
        seen[0] += F.cross_entropy(logits, species, reduction="sum")
        seen[1] += (logits.argmax(1) == species).sum()
        seen[2] += len(species)
    dist.all_reduce(seen)
    if MENDED:
        model.train()
    return (seen[0] / seen[2]).item(), (seen[1] / seen[2]).item()


def build(args):
    model = ViT(args.size, args.patch, args.dim, args.depth, args.heads)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--patch", type=int, default=4)
    ap.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--batch", type=int, default=draw("batch", 12, 14))
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--eval-every", type=int, default=30)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = Birds(2 * 45 * args.batch, args.size, seed=1), Birds(96, args.size, seed=2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test, 24, sampler=DistributedSampler(test, shuffle=False))
    model = build(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.05)
    torch.manual_seed(10 + dist.get_rank())
    model.train()
    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for image, species in loader:
            loss = F.cross_entropy(model(image), species, label_smoothing=0.1)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % args.eval_every == 0:
                test_loss, right = evaluate(model, test_loader)
                if dist.get_rank() == 0:
                    print(f"step {step}: test loss {test_loss:.4f}, right {right:.3f}", flush=True)
            if step == args.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
