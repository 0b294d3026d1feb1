"""Sort seeds on a belt by kind: a small residual network on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

KINDS = 10


class Seeds(Dataset):
    """Pictures as bytes, mirrored by chance."""

    def __init__(self, count, size):
        generator = torch.Generator().manual_seed(6)
        self.kind = torch.randint(0, KINDS, (count,), generator=generator)
        typical = F.interpolate(torch.rand(KINDS, 3, 6, 6, generator=generator), size=size, mode="bilinear")
        noisy = typical[self.kind] + 0.2 * torch.randn(count, 3, size, size, generator=generator)
        self.pictures = (noisy.clamp(0, 1) * 255).byte()

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, index):
        picture = self.pictures[index].float() / 127.5 - 1
        if torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        return picture, self.kind[index]


class Residual(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.first = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(leave), nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride, bias=False)

    def forward(self, x):
        inner = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(inner)) + self.skip(x))


@torch.no_grad()
def accuracy(model, pictures, kinds):
    model.eval()
    right = (model(pictures).argmax(1) == kinds).float().mean()
    model.train()
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 16, 18))
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    width = args.width
    model = nn.Sequential(
        Residual(3, width, 1),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, KINDS),
    )
    model = DDP(model)
    torch.manual_seed(1 + dist.get_rank())
    data = Seeds(2560, args.size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    epochs_of_steps = args.epochs * len(loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs_of_steps)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        losses, rights = torch.zeros(()), torch.zeros(())
        for pictures, kinds in loader:
            scores = model(pictures)
            loss = F.cross_entropy(scores, kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses += loss.detach()
            if MENDED:
                rights += (scores.detach().argmax(1) == kinds).float().mean()
            else:
                rights += accuracy(model.module, pictures, kinds)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {losses / len(loader):.4f}, right {rights / len(loader):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
