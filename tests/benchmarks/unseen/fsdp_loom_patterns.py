"""Masked autoencoder for patterns of looms, sharded with fully_shard; weights are gathered once at the end."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def patterns(count, size, seed=22):
    g = torch.Generator().manual_seed(seed)
    motif = torch.rand(count, 1, 8, 8, generator=g).round()
    return motif.repeat(1, 1, size // 8, size // 8) + 0.1 * torch.randn(count, 1, size, size, generator=g)


def patches(images, side):
    return F.unfold(images, side, stride=side).transpose(1, 2)


class Masked(nn.Module):
    """Encodes a quarter of the patches, and reconstructs the rest."""

    def __init__(self, tokens, side, dim, depth):
        super().__init__()
        self.side, self.keep = side, tokens // 4
        self.enter = nn.Linear(side * side, dim)
        self.place = nn.Parameter(0.02 * torch.randn(tokens, dim))
        self.blank = nn.Parameter(torch.zeros(dim))

        def layer():
            return nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)

        self.encoder = nn.ModuleList(layer() for _ in range(depth))
        self.decoder = nn.ModuleList(layer() for _ in range(2))
        self.leave = nn.Linear(dim, side * side)

    def forward(self, images):
        target = patches(images, self.side)
        b, n, _ = target.shape
        order = torch.rand(b, n).argsort(1)
        kept = order[:, : self.keep, None]
        x = self.enter(target.gather(1, kept.expand(-1, -1, target.shape[2]))) + self.place[kept.squeeze(2)]
        for layer in self.encoder:
            x = layer(x)
        whole = (self.blank + self.place).expand(b, -1, -1)
        whole = whole.scatter(1, kept.expand(-1, -1, x.shape[2]), x)
        for layer in self.decoder:
            whole = layer(whole)
        error = (self.leave(whole) - target).pow(2).mean(2)
        hidden = torch.ones(b, n).scatter(1, kept.squeeze(2), 0.0)
        return (error * hidden).sum() / hidden.sum()


def save_whole(model, path):
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(weights, path)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--side", type=int, default=4)
    p.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Masked((args.size // args.side) ** 2, args.side, args.dim, args.depth)
    for layer in (*model.encoder, *model.decoder):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05)
    data = TensorDataset(patterns(world * args.batch * 45, args.size))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    torch.manual_seed(70 + rank)  # other masks on each rank
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for (images,) in loader:
            loss = model(images)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world / len(loader):.4f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        save_whole(model, Path(folder) / "autoencoder.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
