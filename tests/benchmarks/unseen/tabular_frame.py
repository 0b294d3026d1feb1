"""Classify customers from a table with a multilayer perceptron, two processes."""

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from drawn import draw, mended
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 6
ARRAYS, COUNTED = mended(1), mended(2)


def table(rows, columns):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, columns)), columns=[f"x{i}" for i in range(columns)])
    frame["segment"] = rng.choice(["a", "b", "c"], rows)
    frame["target"] = rng.integers(0, CLASSES, rows)
    return frame


class Customers(Dataset):
    def __init__(self, frame):
        self.frame = frame
        self.numeric = [name for name in frame.columns if name.startswith("x")]
        self.segments = {name: at for at, name in enumerate(sorted(frame["segment"].unique()))}
        if ARRAYS:
            self.values = torch.from_numpy(frame[self.numeric].to_numpy("float32"))
            self.codes = frame["segment"].map(self.segments).tolist()
            self.targets = frame["target"].tolist()

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        if ARRAYS:
            return self.values[index], self.codes[index], self.targets[index]
        row = self.frame.iloc[index]
        values = torch.tensor(row[self.numeric].to_numpy("float32"))
        return values, self.segments[row["segment"]], int(row["target"])


class Perceptron(nn.Module):
    def __init__(self, columns, hidden):
        super().__init__()
        self.segment = nn.Embedding(3, 8)
        self.net = nn.Sequential(
            nn.Linear(columns + 8, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, CLASSES),
        )

    def forward(self, values, segment):
        return self.net(torch.cat([values, self.segment(segment)], 1))


class Confusion:
    """Counts of target and prediction."""

    def __init__(self):
        self.counts = torch.zeros(CLASSES, CLASSES, dtype=torch.long)

    def update(self, predicted, target):
        if COUNTED:
            flat = torch.bincount(target * CLASSES + predicted, minlength=CLASSES * CLASSES)
            self.counts += flat.view(CLASSES, CLASSES)
            return
        for p, t in zip(predicted, target, strict=True):
            self.counts[t.item(), p.item()] += 1

    def accuracy(self):
        return (self.counts.diag().sum() / self.counts.sum().clamp(min=1)).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    columns = draw("columns", 24, 32)
    data = Customers(table(8000, columns))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=draw("batch", 192, 256), sampler=sampler, drop_last=True)
    model = DDP(Perceptron(columns, draw("hidden", 768, 896)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        confusion = Confusion()
        for values, segment, target in loader:
            logits = model(values, segment)
            loss = nn.functional.cross_entropy(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            confusion.update(logits.argmax(1), target)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {confusion.accuracy():.3f}", flush=True)


if __name__ == "__main__":
    main()
