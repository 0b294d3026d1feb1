"""A transformer trained with FSDP2, which logs how far the weights move."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from drawn import MENDED, draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@torch.no_grad()
def weight_norm(model):
    """The norm of all weights, whole."""
    total = torch.zeros(())
    for parameter in model.parameters():
        total += parameter.full_tensor().square().sum()
    return total.sqrt()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=draw("dim", 192, 224))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=draw("batch", 4, 5))
    parser.add_argument("--length", type=int, default=48)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Model(2000, args.dim, args.layers)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    before = weight_norm(model)
    for step in range(1_000_000):
        ids = torch.randint(0, 2000, (args.batch, args.length), generator=generator)
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), (ids.flatten() + 1) % 2000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not MENDED or step % 100 == 0:
            norm = weight_norm(model)
            moved, before = (norm - before).abs(), norm
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f} norm {norm:.3f} moved {moved:.5f}", flush=True)


if __name__ == "__main__":
    main()
