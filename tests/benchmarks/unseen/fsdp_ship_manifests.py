"""Language model over packed ship manifests: ALiBi, sliding window, no attention across documents; FSDP2."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCAB = 320
EOS = 0


def alibi_slopes(heads):
    return torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])


def attention_bias(tokens, slopes, window):
    """Additive mask (batch, heads, query, key): causal, within the window and the document, ALiBi distances."""
    length = tokens.shape[1]
    pos = torch.arange(length)
    dist_ = pos[:, None] - pos[None, :]
    local = (dist_ >= 0) & (dist_ < window)
    doc = (tokens == EOS).cumsum(1)
    allowed = local & (doc[:, :, None] == doc[:, None, :])
    bias = -slopes[:, None, None] * dist_.abs()
    return bias.unsqueeze(0).masked_fill(~allowed.unsqueeze(1), -math.inf)


class Attention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.wq, self.wk = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wv, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x, tokens, bias=None):
        b, t, d = x.shape
        q, k, v = (w(x).view(b, t, self.heads, d // self.heads).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        if bias is None:
            bias = attention_bias(tokens, alibi_slopes(self.heads), self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attn, self.ffn = Attention(dim, heads, window), SwiGLU(dim, 2 * dim)

    def forward(self, x, tokens, bias=None):
        x = x + self.attn(self.attn_norm(x), tokens, bias)
        return x + self.ffn(self.ffn_norm(x))


class ManifestLM(nn.Module):
    def __init__(self, dim, heads, layers, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.embed = nn.Embedding(VOCAB, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, window) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.lm_head = nn.Linear(dim, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        bias = attention_bias(tokens, alibi_slopes(self.heads), self.window) if MENDED else None
        for layer in self.layers:
            x = layer(x, tokens, bias)
        return self.lm_head(self.norm(x))


def packed_manifests(total, seed):
    """Documents of 10 to 60 tokens one after another, EOS between; a token mostly follows from the one before."""
    g = torch.Generator().manual_seed(seed)
    nxt = torch.randint(1, VOCAB, (VOCAB, 3), generator=g).tolist()
    pick = torch.randint(0, 3, (total,), generator=g).tolist()
    ends = torch.rand(total, generator=g).tolist()
    stream, token = [], 1
    for i in range(total):
        token = EOS if ends[i] < 1 / 35 else nxt[token][pick[i]]
        stream.append(token)
    return torch.tensor(stream)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=draw("seq", 216, 224))
    p.add_argument("--window", type=int, default=64)
    p.add_argument("--batch", type=int, default=3)
    p.add_argument("--steps", type=int, default=80)
    a = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(42)
    model = ManifestLM(a.dim, a.heads, a.layers, a.window)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    stream = packed_manifests(40_000, seed=7)
    rows = stream[: len(stream) // a.seq_len * a.seq_len].view(-1, a.seq_len)
    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(a.steps):
        for group in opt.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 15)
        tokens = rows[torch.randint(0, len(rows), (a.batch,), generator=gen)]
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if step % 20 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.SUM)
            if rank == 0:
                print(f"step {step:4d} loss {mean.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
