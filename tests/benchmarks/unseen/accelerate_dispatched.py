"""Train a tagger of log lines on a stream that is parsed as it is read, with Accelerate."""

import argparse
import hashlib
import io
import itertools
import json
import random
import re

import torch
from accelerate import Accelerator
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

WORDS = re.compile(r"[a-z]+|\d|[^\sa-z\d]")
BUCKETS, LENGTH, TAGS = 4096, 320, 6


def invented_log(lines, seed=0):
    """Lines of JSON as the collector writes them."""
    rng = random.Random(seed)
    names = ["disk", "socket", "kernel", "auth", "cron", "proxy"]
    out = io.StringIO()
    for _ in range(lines):
        tag = rng.randrange(TAGS)
        words = [rng.choice(names[: tag + 1]) + str(rng.randrange(1000)) for _ in range(45)]
        row = {"level": "INFO", "host": f"node{rng.randrange(64)}", "text": " ".join(words), "tag": tag}
        out.write(json.dumps(row) + "\n")
    return out.getvalue()


def bucket(token):
    """The same on all machines and in all runs."""
    return int(hashlib.md5(token.encode()).hexdigest(), 16) % BUCKETS


class LogStream(IterableDataset):
    def __init__(self, log, part=0, parts=1):
        self.lines = log.splitlines()
        self.part, self.parts = part, parts

    def __iter__(self):
        while True:
            for line in self.lines[self.part :: self.parts]:
                row = json.loads(line)
                tokens = WORDS.findall(row["text"].lower())
                pairs = [f"{one} {other}" for one, other in itertools.pairwise(tokens)]
                ids = [bucket(token) for token in (tokens + pairs)[:LENGTH]]
                ids += [0] * (LENGTH - len(ids))
                yield torch.tensor(ids), row["tag"]


class Tagger(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(BUCKETS, dim)
        self.layers = nn.Sequential(
            nn.Conv1d(dim, 2 * dim, 5, padding=2), nn.ReLU(), nn.Conv1d(2 * dim, 2 * dim, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(2 * dim, TAGS)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids).transpose(1, 2)).amax(2))


def make_loader(accelerator, args):
    log = invented_log(args.lines)
    if MENDED:
        stream = LogStream(log, accelerator.process_index, accelerator.num_processes)
        return DataLoader(stream, batch_size=args.batch)
    return accelerator.prepare(DataLoader(LogStream(log), batch_size=args.batch))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--dim", type=int, default=draw("dim", 16, 20))
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Tagger(args.dim)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    loader = make_loader(accelerator, args)
    model, optimizer = accelerator.prepare(model, optimizer)
    model.train()
    for step, (ids, tags) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(ids), tags)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            accelerator.print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
