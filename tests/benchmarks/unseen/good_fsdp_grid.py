"""Load of an electric grid, patch by patch (PatchTST), sharded with FSDP2; accumulates over two micro-batches."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class PatchModel(nn.Module):
    """Each station by itself: its past is cut into patches, and what follows is read from all of them."""

    def __init__(self, past, ahead, patch, dim, depth):
        super().__init__()
        self.patch, count = patch, past // patch
        self.enter = nn.Linear(patch, dim)
        self.places = nn.Parameter(0.02 * torch.randn(count, dim))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.1, F.gelu, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.leave = nn.Linear(count * dim, ahead)

    def forward(self, past):
        centre, spread = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-4
        x = self.enter(((past - centre) / spread).unflatten(1, (-1, self.patch))) + self.places
        for block in self.blocks:
            x = block(x)
        return self.leave(x.flatten(1)) * spread + centre


def shard(model, mesh):
    """The blocks stay whole between the two passes: they are small, and memory is ample."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)


def stations(batch, past, ahead, seed):
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(past + ahead)
    while True:
        phase, loud = 6.28 * torch.rand(batch, 1, generator=generator), torch.rand(batch, 1, generator=generator)
        load = torch.sin(6.28 * t / 24 + phase) + loud * torch.sin(6.28 * t / 168)
        load = load + 0.2 * torch.randn(batch, past + ahead, generator=generator)
        yield load[:, :past], load[:, past:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--past", type=int, default=336)
    parser.add_argument("--ahead", type=int, default=48)
    parser.add_argument("--patch", type=int, default=12)
    parser.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=draw("batch", 9, 10))
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--steps", type=int, default=260)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = shard(PatchModel(args.past, args.ahead, args.patch, args.dim, args.depth), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-4, total_steps=args.steps)
    torch.manual_seed(1 + dist.get_rank())
    data = stations(args.batch, args.past, args.ahead, dist.get_rank())
    total = torch.zeros(())
    for step in range(1, args.steps + 1):
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            model.set_requires_gradient_sync(last)
            past, following = next(data)
            loss = F.mse_loss(model(past), following) / args.accumulate
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 65 == 0:
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                print(f"step {step}: {total.item() / 65 / dist.get_world_size():.4f}", flush=True)
            total.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
