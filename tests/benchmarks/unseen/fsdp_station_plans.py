"""Sequence-to-sequence model from notes to station plans; FSDP2, gradients accumulated without communication."""

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

SYMBOLS = 96
START = 0


def make_pairs(n, length, seed):
    """The plan has the symbols of the notes backwards, each moved on by the one before it."""
    g = torch.Generator().manual_seed(seed)
    notes = torch.randint(1, SYMBOLS, (n, length), generator=g)
    back = notes.flip(1)
    plan = (back + torch.roll(back, 1, 1)) % (SYMBOLS - 1) + 1
    return notes, plan


class Seq2Seq(nn.Module):
    def __init__(self, dim, heads, layers, length):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, length, dim))
        make = {"batch_first": True, "norm_first": True, "dropout": 0.0}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(dim, heads, 3 * dim, **make) for _ in range(layers))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(dim, heads, 3 * dim, **make) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, SYMBOLS)
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        self.register_buffer("causal", mask, persistent=False)

    def forward(self, notes, plan):
        memory = self.embed(notes) + self.pos
        for layer in self.encoder:
            memory = layer(memory)
        before = F.pad(plan[:, :-1], (1, 0), value=START)
        x = self.embed(before) + self.pos
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=self.causal)
        return self.out(self.norm(x))


def shard(model):
    # the weights fit into memory: they stay gathered between forward and backward
    for layer in (*model.encoder, *model.decoder):
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)


def save(model, folder):
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        path = Path(folder) / "plans.pt"
        torch.save(state, path)
        print(f"saved {path} ({path.stat().st_size / 1e6:.1f} MB)", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--length", type=int, default=draw("length", 28, 32))
    ap.add_argument("--micro-batch", type=int, default=8)
    ap.add_argument("--accumulate", type=int, default=3)
    ap.add_argument("--steps", type=int, default=72)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(21)
    model = Seq2Seq(args.dim, args.heads, args.layers, args.length)
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 20, (20 / (s + 1)) ** 0.5))
    notes, plan = make_pairs(8192, args.length, seed=3)
    notes, plan = notes[rank::world], plan[rank::world]
    rows = torch.Generator().manual_seed(50 + rank)

    for step in range(args.steps):
        total = torch.zeros(())
        for micro in range(args.accumulate):
            # reduce-scatter only with the last one
            model.set_requires_gradient_sync(micro == args.accumulate - 1)
            picked = torch.randint(0, len(notes), (args.micro_batch,), generator=rows)
            scores = model(notes[picked], plan[picked])
            loss = F.cross_entropy(scores.flatten(0, 1), plan[picked].flatten()) / args.accumulate
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        optimizer.zero_grad()
        if (step + 1) % 18 == 0:
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step + 1}: loss {total.item() / world:.4f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
