"""Distil an ensemble into a small network, one process; the teachers answer without gradients."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader, TensorDataset


class Network(nn.Module):
    def __init__(self, features, hidden, depth, classes):
        super().__init__()
        self.enter = nn.Linear(features, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        x = F.relu(self.enter(x))
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return self.out(x)


class Ensemble(nn.Module):
    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    @torch.inference_mode()
    def forward(self, x, temperature):
        return torch.stack([F.softmax(member(x) / temperature, 1) for member in self.members]).mean(0)


def teachers(count, features, hidden, classes):
    """As if loaded from checkpoints."""
    made = []
    for seed in range(count):
        torch.manual_seed(100 + seed)
        made.append(Network(features, hidden, 3, classes).eval())
    return Ensemble(made)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--classes", type=int, default=30)
    parser.add_argument("--teachers", type=int, default=draw("teachers", 2, 3))
    parser.add_argument("--teacher-hidden", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 448, 512))
    parser.add_argument("--batch", type=int, default=draw("batch", 256, 320))
    parser.add_argument("--temperature", type=float, default=2.0)
    args = parser.parse_args()

    ensemble = teachers(args.teachers, args.features, args.teacher_hidden, args.classes)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(20_000, args.features), torch.randint(0, args.classes, (20_000,)))
    batches = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), args.batch, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    student = Network(args.features, args.hidden, 2, args.classes)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    step = 0
    while True:
        for x, y in loader:
            soft = ensemble(x, args.temperature)
            logits = student(x)
            guessed = F.log_softmax(logits / args.temperature, 1)
            loss = F.kl_div(guessed, soft.clone(), reduction="batchmean") * args.temperature**2
            loss = 0.8 * loss + 0.2 * F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 200 == 0:
                print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
