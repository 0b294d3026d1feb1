"""Answers to questions of tourists, improved by rewards: clipped policy gradient on kept answers, two ranks."""

import argparse
import copy
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP

PAD, FIRST = 0, 1


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x, seen):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.feed(self.norm2(x))


class Guide(nn.Module):
    def __init__(self, words, dim, depth, longest, heads=4):
        super().__init__()
        self.word, self.place = nn.Embedding(words, dim), nn.Embedding(longest, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, words, bias=False)

    def forward(self, ids, mask):
        """Logarithm of the chance of each word but the first."""
        place = (mask.cumsum(1) - 1).clamp(min=0)
        length = ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        seen = (causal & (mask[:, None] > 0) | torch.eye(length, dtype=torch.bool))[:, None]
        x = self.word(ids) + self.place(place)
        for block in self.blocks:
            x = block(x, seen)
        scores = self.head(self.norm(x[:, :-1])).log_softmax(-1)
        return scores.gather(2, ids[:, 1:, None]).squeeze(2)


def kept_answers(count, words, seed):
    """Questions with an answer each, and a reward for each word: good where it follows from the question."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        question = [rng.randrange(FIRST, words) for _ in range(rng.randint(12, 40))]
        answer = [rng.choice(question) if rng.random() < 0.5 else rng.randrange(FIRST, words)]
        while len(answer) < rng.randint(24, 64):
            answer.append(rng.choice(question) if rng.random() < 0.5 else rng.randrange(FIRST, words))
        reward = [0.1 if word in question else -0.1 for word in answer]
        rows.append({"question": question, "answer": answer, "reward": reward})
    return rows


def returns(reward, gamma=0.95):
    kept, later = [], 0.0
    for value in reversed(reward):
        later = value + gamma * later
        kept.append(later)
    return kept[::-1]


def in_one(rows):
    """Questions end and answers start in the same column: filled up at the left and at the right."""
    left, right = max(len(r["question"]) for r in rows), max(len(r["answer"]) for r in rows)
    ids = torch.full((len(rows), left + right), PAD)
    mask, of_answer = torch.zeros_like(ids), torch.zeros(len(rows), right)
    gain = torch.zeros(len(rows), right)
    for i, row in enumerate(rows):
        question, answer, value = row["question"], row["answer"], row["gain"]
        start = left - len(question)
        if MENDED:
            ids[i, start : left + len(answer)] = torch.tensor(question + answer)
            mask[i, start : left + len(answer)] = 1
            of_answer[i, : len(answer)] = 1
            gain[i, : len(answer)] = torch.tensor(value)
            continue
        for j in range(len(question)):
            ids[i, start + j] = question[j]
            mask[i, start + j] = 1
        for j in range(len(answer)):
            ids[i, left + j] = answer[j]
            mask[i, left + j] = 1
            of_answer[i, j] = 1
            gain[i, j] = value[j]
    return ids, mask, of_answer, gain


def policy_loss(log_prob, old, gain, of_answer, clip=0.2):
    ratio = (log_prob - old).exp()
    both = torch.min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    return -(both * of_answer).sum() / of_answer.sum()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--words", type=int, default=400)
    p.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--batch", type=int, default=draw("batch", 16, 18))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(83)
    rows = kept_answers(40 * world * args.batch, args.words, seed=1)
    for row in rows:
        row["gain"] = returns(row["reward"])
    guide = Guide(args.words, args.dim, args.depth, longest=112)
    first = copy.deepcopy(guide).requires_grad_(False)
    model = DDP(guide, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.01, fused=True)
    for epoch in range(args.epochs):
        order = random.Random(epoch).sample(range(len(rows)), len(rows))[rank::world]
        total = torch.zeros(())
        for at in range(0, len(order), args.batch):
            ids, mask, of_answer, gain = in_one([rows[i] for i in order[at : at + args.batch]])
            columns = gain.shape[1]
            with torch.no_grad():
                old = first(ids, mask)[:, -columns:]
            loss = policy_loss(model(ids, mask)[:, -columns:], old, gain, of_answer)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world * args.batch / len(order):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
