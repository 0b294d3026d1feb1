"""Domain-adversarial training: spectra labelled in the laboratory, unlabelled ones from the field."""

import argparse
import math

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.autograd import Function
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Reverse(Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


class DANN(nn.Module):
    def __init__(self, bands, width, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(bands, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.classify = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))
        self.domain = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, lab, field, strength):
        features = self.features(torch.cat([lab, field]))
        return self.classify(features[: len(lab)]), self.domain(Reverse.apply(features, strength))


def spectra(count, bands, seed, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    x = torch.rand(count, bands, generator=generator)
    x[torch.arange(count), labels * (bands // 10)] += 1.5 + shift
    return x, labels


def endless(loader):
    while True:
        yield from loader


def make_loaders(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    lab = TensorDataset(*spectra(20_000, args.bands, 1))
    sampler = DistributedSampler(lab, drop_last=True)
    source = DataLoader(lab, batch_size=args.batch, sampler=sampler, drop_last=True)
    field = spectra(args.field, args.bands, 2, shift=0.5)[0][rank::world]
    target = DataLoader(TensorDataset(field), batch_size=args.batch, shuffle=True, drop_last=True)
    return source, sampler, target


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bands", type=int, default=60)
    parser.add_argument("--field", type=int, default=draw("field", 400_000, 480_000))
    parser.add_argument("--width", type=int, default=draw("width", 448, 512))
    parser.add_argument("--batch", type=int, default=draw("batch", 112, 128))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    source, sampler, target = make_loaders(args)
    torch.manual_seed(0)
    model = DDP(DANN(args.bands, args.width, 10))
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    domains = torch.tensor([0] * args.batch + [1] * args.batch)
    unlabelled = endless(target)
    step = 0
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for lab, labels in source:
            field = next(unlabelled)[0] if MENDED else next(iter(target))[0]
            strength = 2 / (1 + math.exp(-step / 1000)) - 1
            guessed, told_apart = model(lab, field, strength)
            of_class = nn.functional.cross_entropy(guessed, labels)
            of_domain = nn.functional.cross_entropy(told_apart, domains)
            optimizer.zero_grad()
            (of_class + of_domain).backward()
            optimizer.step()
            step += 1
            if step % 100 == 0 and dist.get_rank() == 0:
                print(f"{step}: class {of_class.item():.3f}, domain {of_domain.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
