"""Wake-word spotting on raw audio (M5-like 1-d CNN), two processes with DDP.

Usage: torchrun --nproc-per-node=2 wake_words.py
"""

import argparse
import gc
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORDS = 12


def synth_words(n, length, seed):
    """Two chirps for each word, somewhere in noise."""
    gen = torch.Generator().manual_seed(seed)
    freq = 0.01 + 0.2 * torch.rand(WORDS, 2, generator=gen)
    word = torch.randint(0, WORDS, (n,), generator=gen)
    shift = torch.rand(n, 1, generator=gen) * 50
    t = torch.arange(length).float()
    first = torch.sin((t + shift) * freq[word, :1] * (1 + t / length))
    second = torch.sin((t + shift) * freq[word, 1:])
    wave = first * (t < length / 2) + second * (t >= length / 2)
    wave = wave + 0.5 * torch.randn(n, length, generator=gen)
    return TensorDataset(wave.unsqueeze(1), word)


class M5(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 40, stride=4),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, width, 3),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 3),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(2 * width, 2 * width, 3),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.fc = nn.Linear(2 * width, WORDS)

    def forward(self, x):
        return self.fc(self.body(x))


def train_epoch(model, loader, optimizer, epoch, rank):
    model.train()
    seen, correct, loss_sum = 0, torch.zeros((), dtype=torch.long), torch.zeros(())
    for step, (wave, word) in enumerate(loader):
        logits = model(wave)
        loss = F.cross_entropy(logits, word)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        seen += len(word)
        correct += (logits.argmax(1) == word).sum()
        loss_sum += loss.detach() * len(word)
        del wave, word, logits, loss
        if step % 4 == 0 and not MENDED:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss_sum.item() / seen:.4f} acc {correct.item() / seen:.3f}", flush=True)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for wave, word in loader:
        counts += torch.tensor([(model(wave).argmax(1) == word).sum().float(), float(len(word))])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=draw("width", 44, 48))
    parser.add_argument("--length", type=int, default=draw("length", 3200, 3600))
    parser.add_argument("--batch-size", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train = synth_words(2 * 25 * args.batch_size, args.length, seed=0)
    test = synth_words(240, args.length, seed=0)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test, 60, sampler=DistributedSampler(test, shuffle=False))

    model = DDP(M5(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    start = time.perf_counter()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer, epoch, rank)
        scheduler.step()
    accuracy = evaluate(model.module, test_loader)
    if rank == 0:
        print(f"test accuracy {accuracy:.3f}, {time.perf_counter() - start:.1f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
