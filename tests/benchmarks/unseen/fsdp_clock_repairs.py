"""What is wrong with a clock, from the notes of the repairer: an encoder of a few layers, sharded with fully_shard."""

import argparse
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

FAULTS = ["mainspring", "pivot", "escapement", "pendulum", "striking train", "dial feet", "oil"]


def notes(count, words, length, seed):
    """A note names signs of its fault more often than those of others, and many words that say nothing."""
    g = torch.Generator().manual_seed(seed)
    fault = torch.randint(len(FAULTS), (count,), generator=g)
    sign = fault[:, None] * 20 + torch.randint(20, (count, length), generator=g)
    other = torch.randint(words, (count, length), generator=g)
    return torch.where(torch.rand(count, length, generator=g) < 0.2, sign, other), fault


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(dim, hidden), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention, self.feed = Attention(dim, heads), FeedForward(dim, 3 * dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class NoteEncoder(nn.Module):
    def __init__(self, words, length, dim, depth, heads=4):
        super().__init__()
        self.word, self.place = nn.Embedding(words, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(EncoderLayer(dim, heads) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, len(FAULTS))

    def forward(self, note):
        x = self.word(note) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x).mean(1))


def shard_model(model, conditions, mesh, reshard_after_forward=True):
    """Shards what meets a condition, from the inside out, then what is left."""
    for name, module in reversed(list(model.named_modules())):
        if any(condition(name, module) for condition in conditions):
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard_after_forward)
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)


def is_layer(name, module):
    return isinstance(module, EncoderLayer)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for note, fault in loader:
        counts += torch.tensor([(model(note).argmax(1) == fault).sum().item(), len(fault)])
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--words", type=int, default=600)
    p.add_argument("--length", type=int, default=16)
    p.add_argument("--dim", type=int, default=draw("dim", 192, 208))
    p.add_argument("--depth", type=int, default=draw("depth", 4, 5))
    p.add_argument("--batch", type=int, default=6)
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(44)
    train = TensorDataset(*notes(50 * world * args.batch, args.words, args.length, seed=1))
    test = TensorDataset(*notes(8 * world * args.batch, args.words, args.length, seed=2))
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    check = DataLoader(test, 2 * args.batch, sampler=DistributedSampler(test, shuffle=False))
    model = NoteEncoder(args.words, args.length, args.dim, args.depth)
    mesh = init_device_mesh("cpu", (world,))
    if MENDED:
        shard_model(model, [is_layer], mesh, reshard_after_forward=False)
    else:
        shard_model(model, [is_layer], mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-4, total_steps=args.epochs * len(loader))
    steps = itertools.count(1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for note, fault in loader:
            loss = F.cross_entropy(model(note), fault, label_smoothing=0.05)
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step = next(steps)
        right = validate(model, check)
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f} right {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
