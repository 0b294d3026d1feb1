"""A causal model of events in hospital records, sharded with FSDP2; weights are gathered once, at the end."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

EVENTS = 500


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.gate, self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Records(nn.Module):
    def __init__(self, dim, heads, depth, length):
        super().__init__()
        self.events = nn.Embedding(EVENTS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, EVENTS, bias=False)

    def forward(self, ids):
        x = self.events(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def patients(batch, length, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        begin = torch.randint(0, EVENTS, (batch, 1), generator=generator)
        stride = torch.randint(1, 6, (batch, 1), generator=generator)
        yield (begin + stride * torch.arange(length + 1)) % EVENTS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=draw("batch", 7, 8))
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--clip", type=float, default=1.0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Records(args.dim, 4, args.depth, args.length)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
    data = patients(args.batch, args.length, dist.get_rank())
    for step in range(1, args.steps + 1):
        ids = next(data)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        schedule.step()
        if step % 65 == 0:
            length = norm.full_tensor()
            if dist.get_rank() == 0:
                print(f"step {step}: {loss.item():.4f}, gradient {length.item():.2f}", flush=True)
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(weights, "records.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
