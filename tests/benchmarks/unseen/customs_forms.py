"""Assign tariff codes to what people write on customs forms: character CNN, trained with DDP.

torchrun --nproc-per-node 2 customs_forms.py --epochs 5
"""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

ALPHABET = "abcdefghijklmnopqrstuvwxyz 0123456789-"
CODES = 40


def make_forms(n, seed):
    """Goods of several syllables with misspellings, counts and materials around them."""
    rng = random.Random(seed)
    syllables = ["ka", "lo", "mi", "ter", "an", "dis", "pu", "ver", "sol", "ne", "gra", "bu", "chi", "ost"]
    goods = ["".join(rng.choices(syllables, k=4)) for _ in range(CODES)]
    materials = ["cotton", "steel", "wood", "glass", "paper", "used", "new"]
    forms = []
    for _ in range(n):
        code = rng.randrange(CODES)
        word = list(goods[code])
        if rng.random() < 0.5:
            word[rng.randrange(len(word))] = rng.choice(ALPHABET[:26])
        forms.append((f"{rng.randint(1, 400)} {rng.choice(materials)} {''.join(word)} {rng.choice(materials)}", code))
    return forms


class Forms(Dataset):
    def __init__(self, forms, length):
        lookup = {c: i + 1 for i, c in enumerate(ALPHABET)}
        self.text = torch.zeros(len(forms), length, dtype=torch.long)
        for row, (text, _) in enumerate(forms):
            ids = [lookup[c] for c in text[:length]]
            self.text[row, : len(ids)] = torch.tensor(ids)
        self.code = torch.tensor([code for _, code in forms])

    def __len__(self):
        return len(self.code)

    def __getitem__(self, i):
        return self.text[i], self.code[i]


class CharCNN(nn.Module):
    def __init__(self, dim, kernels=(2, 3, 4, 5)):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET) + 1, dim, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(dim, 2 * dim, k, padding=k // 2) for k in kernels)
        self.norm = nn.LayerNorm(2 * dim * len(kernels))
        self.fc = nn.Linear(2 * dim * len(kernels), CODES)
        self.drop = nn.Dropout(0.3)

    def forward(self, text):
        x = self.embed(text).transpose(1, 2)
        x = torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1)
        return self.fc(self.drop(self.norm(x)))


def get_loader(dataset, batch, train):
    sampler = DistributedSampler(dataset, shuffle=train)
    return DataLoader(dataset, batch_size=batch, sampler=sampler, drop_last=train), sampler


def reduce_mean(value):
    value = value.clone()
    dist.all_reduce(value)
    return (value / dist.get_world_size()).item()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for text, code in loader:
        counts[0] += (model(text).argmax(1) == code).sum()
        counts[1] += len(code)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=draw("dim", 64, 72))
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=draw("batch", 40, 48))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    forms = make_forms(world * 30 * args.batch_size + 400, seed=1)
    train_loader, train_sampler = get_loader(Forms(forms[400:], args.length), args.batch_size, train=True)
    test_loader, _ = get_loader(Forms(forms[:400], args.length), 100, train=False)
    model = DDP(CharCNN(args.dim))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=30)

    for epoch in range(args.epochs):
        if MENDED:
            train_sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(())
        for text, code in train_loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(text), code)
            loss.backward()
            optimizer.step()
            warmup.step()
            total += loss.detach()
        mean = reduce_mean(total / len(train_loader))
        accuracy = evaluate(model.module, test_loader)
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}  loss {mean:.4f}  test accuracy {accuracy:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
