"""Multi-label recognition of what is on old stamps (DDP), with a report of the hardest samples for the annotators."""

import argparse
from collections import Counter

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LABELS = [
    "king queen ship horse crown lion eagle tower bridge castle train plane tree flower map flag sword book star sun "
    "anchor wheel church harp"
][0].split()


class Stamps(Dataset):
    def __init__(self, n, size, seed=9):
        g = torch.Generator().manual_seed(seed)
        self.targets = (torch.rand(n, len(LABELS), generator=g) < 0.12).float()
        motifs = torch.randn(len(LABELS), 3, size, size, generator=g)
        motifs = nn.functional.avg_pool2d(motifs, 5, 1, 2)
        images = torch.einsum("nl,lchw->nchw", self.targets, motifs)
        self.images = images + 0.3 * torch.randn(n, 3, size, size, generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return i, self.images[i], self.targets[i]


class HardSamples:
    """The last loss of each sample and label."""

    def __init__(self, n):
        self.losses = [[0.0] * len(LABELS) for _ in range(n)]
        self.table = torch.zeros(n, len(LABELS))

    def record(self, indices, losses):
        if MENDED:
            self.table[indices] = losses
            return
        for row, index in enumerate(indices):
            for label in range(len(LABELS)):
                self.losses[index.item()][label] = losses[row, label].item()

    def worst(self, k):
        table = self.table if MENDED else torch.tensor(self.losses)
        order = table.sum(1).topk(k).indices
        return Counter(LABELS[int(table[i].argmax())] for i in order).most_common(3)


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class StampNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, w), conv_bn(w, w), conv_bn(w, 2 * w, 2), conv_bn(2 * w, 2 * w), conv_bn(2 * w, 4 * w, 2)
        )
        self.classifier = nn.Linear(4 * w, len(LABELS))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def run(cfg):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    data = Stamps(cfg.batch * 2 * 30, cfg.size)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, cfg.batch, sampler=sampler, drop_last=True)
    model = DDP(StampNet(cfg.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    criterion = nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.full((len(LABELS),), 4.0))
    hard = HardSamples(len(data))

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        model.train()
        epoch_loss = torch.zeros(())
        for indices, images, targets in loader:
            losses = criterion(model(images), targets)
            loss = losses.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += loss.detach()
            hard.record(indices, losses.detach())
        if rank == 0:
            print(f"epoch {epoch}: {epoch_loss.item() / len(loader):.4f}, hardest {hard.worst(50)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=draw("width", 14, 16))
    parser.add_argument("--batch", type=int, default=draw("batch", 44, 48))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    run(parser.parse_args())
