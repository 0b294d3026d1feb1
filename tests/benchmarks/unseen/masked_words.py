"""Pretrain a small BERT on sentences of a company's own language."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MASK, FIRST = 4, 5


class Sentences(Dataset):
    def __init__(self, count, length, words):
        generator = torch.Generator().manual_seed(2)
        begin = torch.randint(0, words - FIRST, (count, 1), generator=generator)
        self.ids = FIRST + (begin + 7 * torch.arange(length)) % (words - FIRST)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index]


class MaskingCollator:
    """Hide 15 % of the tokens: most become [MASK], some a random word, some stay."""

    def __init__(self, words, chance=0.15):
        self.words, self.chance = words, chance

    def __call__(self, rows):
        ids = torch.stack(rows)
        hidden = torch.rand(ids.shape) < self.chance
        how = torch.rand(ids.shape)
        labels = torch.where(hidden, ids, -100)
        ids = torch.where(hidden & (how < 0.8), MASK, ids)
        return torch.where(hidden & (how > 0.9), torch.randint(FIRST, self.words, ids.shape), ids), labels


class Encoder(nn.Module):
    def __init__(self, words, dim, depth, length):
        super().__init__()
        self.words = nn.Embedding(words, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, ids, labels):
        x = self.layers(self.words(ids) + self.places)
        if MENDED:
            hidden = labels != -100
            x, labels = x[hidden], labels[hidden]
        logits = F.linear(self.transform(x), self.words.weight, self.bias)
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=draw("words", 4000, 5000))
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Encoder(args.words, args.dim, args.depth, args.length))
    torch.manual_seed(10 + dist.get_rank())
    data = Sentences(4000, args.length, args.words)
    sampler = DistributedSampler(data)
    collator = MaskingCollator(args.words)
    loader = DataLoader(data, args.batch, sampler=sampler, collate_fn=collator, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (ids, labels) in enumerate(loader):
            loss = model(ids, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
