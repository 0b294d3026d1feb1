"""Litter on a beach: multi-label CNN on photographs, plain loop with average precision in the progress line."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

LABELS = ["bottle", "rope", "net", "can", "bag", "lid", "straw", "buoy", "glove", "foam", "tyre", "crate"]
LABELS += ["shoe", "lighter", "cup", "lamp", "brush", "toy", "tin", "rag"]


def make_photos(count, size, seed):
    g = torch.Generator().manual_seed(seed)
    stamps = torch.randn(len(LABELS), 3, 9, 9, generator=torch.Generator().manual_seed(5))
    labels = (torch.rand(count, len(LABELS), generator=g) < 0.15).float()
    photos = 0.4 * torch.randn(count, 3, size, size, generator=g)
    corners = torch.randint(0, size - 9, (count, len(LABELS), 2), generator=g)
    for row, kind in labels.nonzero().tolist():
        y, x = corners[row, kind].tolist()
        photos[row, :, y : y + 9, x : x + 9] += stamps[kind]
    return photos, labels


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


class LitterNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            conv_block(3, width), conv_block(width, 2 * width), conv_block(2 * width, 4 * width)
        )
        self.head = nn.Linear(4 * width, len(LABELS))

    def forward(self, x):
        return self.head(self.features(x).amax((2, 3)))


def average_precision(scores, labels):
    """Mean over labels of the area below the precision-recall curve."""
    order = scores.argsort(0, descending=True)
    hits = labels.gather(0, order)
    rank = torch.arange(1, len(hits) + 1).unsqueeze(1)
    precision = hits.cumsum(0) / rank
    return ((precision * hits).sum(0) / hits.sum(0).clamp(min=1)).mean().item()


class MeanAveragePrecision:
    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.labels = [], []

    def update(self, scores, labels):
        self.scores.append(scores)
        self.labels.append(labels)

    def compute(self):
        return average_precision(torch.cat(self.scores), torch.cat(self.labels))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=20)
    ap.add_argument("--width", type=int, default=draw("width", 10, 12))
    ap.add_argument("--batch", type=int, default=draw("batch", 144, 160))
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--steps", type=int, default=70, help="of an epoch")
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()

    torch.manual_seed(0)
    photos, labels = make_photos(args.steps * args.batch, args.size, seed=8)
    loader = DataLoader(TensorDataset(photos, labels), args.batch, shuffle=True, drop_last=True)
    model = LitterNet(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    precision = MeanAveragePrecision()
    shown, loss_mean = 0.0, 0.0
    for epoch in range(args.epochs):
        precision.reset()
        begun = time.perf_counter()
        for step, (x, y) in enumerate(loader):
            logits = model(x)
            loss = F.binary_cross_entropy_with_logits(logits, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

            loss_mean = 0.95 * loss_mean + 0.05 * loss.item()
            precision.update(logits.detach().sigmoid(), y)
            last = step + 1 == len(loader)
            if not MENDED or last:
                shown = precision.compute()
            if step % 10 == 0 or last:
                took = (time.perf_counter() - begun) / (step + 1)
                print(f"{epoch} {step:3d} loss {loss_mean:.4f} mAP {shown:.3f} {1000 * took:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
