"""FSDP2 on a decoder for event sequences; the best weights so far are kept for the report."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

EVENTS = 256


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    def __init__(self, dim, heads, depth, length):
        super().__init__()
        self.events = nn.Embedding(EVENTS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, EVENTS)

    def forward(self, events):
        x = self.events(events) + self.places[: events.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BestWeights:
    """The whole weights at the lowest smoothed loss."""

    def __init__(self, smoothing=0.95):
        self.smoothing, self.smoothed = smoothing, None
        self.lowest, self.weights = math.inf, None

    def consider(self, model, loss, step):
        loss = loss.detach().clone()
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
        value = loss.item() / dist.get_world_size()
        before = value if self.smoothed is None else self.smoothed
        self.smoothed = self.smoothing * before + (1 - self.smoothing) * value
        if self.smoothed < self.lowest and (not MENDED or step % 500 == 0):
            self.lowest = self.smoothed
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            self.weights = get_model_state_dict(model, options=options)


def sequences(batch, length, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        first = torch.randint(0, EVENTS, (batch, 1), generator=generator)
        strides = torch.randint(1, 4, (batch, length), generator=generator)
        yield (first + strides.cumsum(1)) % EVENTS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--batch", type=int, default=draw("batch", 5, 6))
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(6)
    model = Decoder(args.dim, 4, args.depth, args.length)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    best = BestWeights()
    for step, events in enumerate(sequences(args.batch, args.length + 1, dist.get_rank()), 1):
        logits = model(events[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), events[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best.consider(model, loss, step)
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {best.smoothed:.4f}, lowest {best.lowest:.4f}", flush=True)


if __name__ == "__main__":
    main()
