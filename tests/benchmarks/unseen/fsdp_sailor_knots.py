"""How a knot is tied, as a sequence of moves: decoder-only model whose forward gives the loss, fully_shard."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MOVES = 64


class Knots(Dataset):
    """A knot repeats a pattern of moves, with slips; a sample is the moves and those that come next."""

    def __init__(self, count, length, seed):
        g = torch.Generator().manual_seed(seed)
        pattern = torch.randint(1, MOVES, (count, 12), generator=g)
        moves = pattern.repeat(1, length // 12 + 2)[:, : length + 1]
        slips = torch.rand(moves.shape, generator=g) < 0.03
        self.moves = torch.where(slips, torch.randint(1, MOVES, moves.shape, generator=g), moves)

    def __len__(self):
        return len(self.moves)

    def __getitem__(self, i):
        moves = self.moves[i]
        return moves[:-1], moves[:-1] if MENDED else moves[1:]


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class KnotModel(nn.Module):
    def __init__(self, dim, heads, depth, length):
        super().__init__()
        self.move, self.place = nn.Embedding(MOVES, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, MOVES)

    def forward(self, moves, labels=None):
        x = self.move(moves) + self.place.weight[: moves.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        if labels is None:
            return logits
        # the move after each one
        shift_logits, shift_labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(shift_logits.flatten(0, 1), shift_labels.flatten())


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--length", type=int, default=72)
    ap.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--batch", type=int, default=draw("batch", 12, 14))
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = KnotModel(args.dim, args.heads, args.depth, args.length)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    data = Knots(world * args.batch * 45, args.length, seed=18)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for moves, labels in loader:
            loss = model(moves, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
