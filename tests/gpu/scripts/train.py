"""Train a small transformer on random tokens, on one device. Each option other than the sizes plants or mends a fault.

python train.py                                   healthy: workers, pinned memory, bf16, fused AdamW
python train.py --precision fp32 --optimizer loop
python train.py --timed                           prints the time of each step as JSON
"""

import argparse
import json
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from turn import wait_for_turn


def parser():
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--tokens", type=int, default=256)
    options.add_argument("--width", type=int, default=1024)
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--heads", type=int, default=16)
    options.add_argument("--vocabulary", type=int, default=4096)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--decode-us", type=float, default=0.0, help="time to decode one sample")
    options.add_argument("--features-kb", type=int, default=0, help="further data of a sample that the device gets")
    options.add_argument("--pageable", action="store_true", help="batches in pageable memory, copied by blocking calls")
    options.add_argument("--precision", choices=("bf16", "tf32", "fp32", "fp64"), default="bf16")
    options.add_argument("--optimizer", choices=("fused", "foreach", "loop"), default="fused")
    options.add_argument("--attention", choices=("sdpa", "naive"), default="sdpa")
    options.add_argument("--item", action="store_true", help="look at a number of every layer")
    options.add_argument("--empty-cache", action="store_true", help="give memory back in every step")
    options.add_argument("--compile", action="store_true")
    options.add_argument("--graphs", action="store_true", help="forward and backward pass as CUDA graphs")
    options.add_argument("--timed", action="store_true", help="print the time of each step")
    return options


class Tokens(Dataset):
    def __init__(self, args):
        self.tokens = torch.randint(0, args.vocabulary, (4 * args.batch, args.tokens + 1))
        self.features = torch.randn(args.features_kb * 256)
        self.decode_s, self.samples = args.decode_us / 1e6, 1_000_000

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        until = time.perf_counter() + self.decode_s
        while time.perf_counter() < until:
            pass
        return self.tokens[index % len(self.tokens)], self.features


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.width
        self.heads, self.naive, self.item = args.heads, args.attention == "naive", args.item
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.largest = 0.0

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        if self.naive:
            scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
            hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        x = x + self.down(functional.gelu(self.up(self.after(x))))
        if self.item:
            self.largest = max(self.largest, x.detach().float().mean().item())
        return x


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embedding = nn.Embedding(args.vocabulary, args.width)
        self.blocks = nn.Sequential(*(Block(args) for _ in range(args.layers)))
        self.head = nn.Linear(args.width, args.vocabulary)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


class Training:
    """Model, optimizer and data by the options; `step()` is one optimizer step."""

    def __init__(self, args):
        torch.manual_seed(0)
        self.args, self.device = args, torch.device(args.device)
        torch.set_float32_matmul_precision("high" if args.precision == "tf32" else "highest")
        double = args.precision == "fp64"
        with self.device:  # a CPU takes a second for the first values of 100 million parameters
            self.model = Model(args).to(torch.float64 if double else torch.float32)
        choice = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False, "fused": False}}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **choice[args.optimizer])
        workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
        self.loader = DataLoader(Tokens(args), args.batch, pin_memory=not args.pageable, **workers)
        self.batches = iter(self.loader)
        self.compute = torch.compile(self.model) if args.compile else self.model
        if args.graphs:
            sample = torch.zeros(args.batch, args.tokens, dtype=torch.long, device=self.device)
            with self.autocast():
                self.compute = torch.cuda.make_graphed_callables(self.model, (sample,))

    def autocast(self):
        enabled = self.args.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=not self.args.graphs)

    def step(self):
        tokens, features = next(self.batches)
        tokens = tokens.to(self.device, non_blocking=not self.args.pageable)
        features = features.to(self.device, non_blocking=not self.args.pageable)
        with self.autocast():
            scores = self.compute(tokens[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.args.empty_cache:
            torch.cuda.empty_cache()
        return loss


def timed(training, warmup, steps):
    """Milliseconds of each step after the warm-up: between events on a GPU, by the clock elsewhere."""
    on_gpu = training.device.type == "cuda"
    marks = []
    for number in range(warmup + steps + 1):
        if number >= warmup:
            marks.append(torch.cuda.Event(enable_timing=True) if on_gpu else time.perf_counter() * 1e3)
            if on_gpu:
                marks[-1].record()
        if number < warmup + steps:
            training.step()
    if on_gpu:
        torch.cuda.synchronize()
        return [earlier.elapsed_time(later) for earlier, later in pairwise(marks)]
    return [later - earlier for earlier, later in pairwise(marks)]


def main():
    args = parser().parse_args()
    training = Training(args)
    wait_for_turn()
    if args.timed:
        print(json.dumps({"steps_ms": timed(training, 5, args.steps)}))
        return
    for _ in range(args.steps):
        training.step()


if __name__ == "__main__":
    main()
