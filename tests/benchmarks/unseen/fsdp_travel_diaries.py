"""Year of a travel diary from its pages: an encoder sharded block by block, micro-batches, fully_shard."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WORDS, DECADES = 800, 12


class Diaries(Dataset):
    """Pages whose words drift over the decades; pages have other lengths."""

    def __init__(self, count, longest, seed):
        g = torch.Generator().manual_seed(seed)
        self.decade = torch.randint(DECADES, (count,), generator=g)
        centre = 60 + self.decade * 55
        words = centre[:, None] + 80 * torch.randn(count, longest, generator=g)
        self.words = words.long().clamp(1, WORDS - 1)
        self.length = torch.randint(longest // 2, longest + 1, (count,), generator=g)

    def __len__(self):
        return len(self.decade)

    def __getitem__(self, i):
        return self.words[i, : self.length[i]], self.decade[i]


def collate(rows):
    words, decades = zip(*rows, strict=True)
    return nn.utils.rnn.pad_sequence(words, batch_first=True), torch.stack(decades)


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wide, self.narrow = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x, real):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.narrow(F.silu(self.wide(self.norm2(x))))


class DiaryModel(nn.Module):
    def __init__(self, longest, dim, depth):
        super().__init__()
        self.word = nn.Embedding(WORDS, dim, padding_idx=0)
        self.place = nn.Embedding(longest, dim)
        self.blocks = nn.ModuleList(EncoderBlock(dim, 4) for _ in range(depth))
        self.head = nn.Linear(dim, DECADES)

    def forward(self, words):
        real = words != 0
        x = self.word(words) + self.place(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x, real)
        weight = real.unsqueeze(-1).float()
        return self.head((x * weight).sum(1) / weight.sum(1))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--longest", type=int, default=48)
    p.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--micro-batch", type=int, default=draw("micro", 12, 14))
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(10)
    data = Diaries(world * args.micro_batch * args.accumulate * 40, args.longest, seed=7)
    sampler = DistributedSampler(data, world, rank, drop_last=True)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, collate_fn=collate, drop_last=True)
    model = DiaryModel(args.longest, args.dim, args.depth)
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)  # small enough to stay whole until the backward pass
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        seen = torch.zeros(2)
        for micro, (words, decade) in enumerate(loader, 1):
            whole = micro % args.accumulate == 0
            model.set_requires_gradient_sync(whole)
            logits = model(words)
            loss = F.cross_entropy(logits, decade)
            (loss / args.accumulate).backward()
            seen += torch.stack([loss.detach(), (logits.argmax(1) == decade).float().mean()])
            if whole:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        dist.all_reduce(seen)
        if rank == 0:
            loss_mean, right = (seen / world / len(loader)).tolist()
            print(f"epoch {epoch} loss {loss_mean:.4f} right {right:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
