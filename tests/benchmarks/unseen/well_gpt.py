"""A small GPT trained in one process, in the style of nanoGPT."""

import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw

block_size = draw("block", 64, 96)
batch_size = draw("batch", 8, 10)
n_embd, n_head, n_layer = draw("embd", 128, 160), 4, 3
vocab_size = 512
learning_rate, min_lr, warmup_iters, max_iters = 1e-3, 1e-4, 100, 1_000_000
log_interval = 50


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, n_head, c // n_head).transpose(1, 2) for y in self.c_attn(x).split(n_embd, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
        for block in self.h:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.T
        return F.cross_entropy(logits.view(-1, vocab_size), targets.reshape(-1))


def get_batch(data):
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    rows = data[ix[:, None] + torch.arange(block_size + 1)]
    return rows[:, :-1], rows[:, 1:]


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = min(1.0, (it - warmup_iters) / 5000)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def main():
    torch.manual_seed(1337)
    steps = torch.randint(1, 5, (200_000,))
    data = steps.cumsum(0) % vocab_size
    model = GPT()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)
    t0 = time.time()
    for it in range(max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it)
        x, y = get_batch(data)
        loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if it % log_interval == 0:
            t1 = time.time()
            print(f"iter {it}: loss {loss.item():.4f}, time {(t1 - t0) * 1000:.0f} ms", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
