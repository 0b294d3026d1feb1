"""Segmentation with an epoch-end summary over all outputs, DDP."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Unet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU())
        self.three = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, classes, 1)

    def forward(self, x):
        early = self.one(x)
        late = self.up(self.three(self.two(early)))
        return self.out(torch.cat([early, late], 1))


class Summary:
    """What an epoch's end is told of each step."""

    def __init__(self):
        self.outputs = []

    def add(self, loss, logits, masks):
        if MENDED:
            right = (logits.argmax(1) == masks).float().mean()
            self.outputs.append((loss.detach(), right))
        else:
            self.outputs.append((loss, logits, masks))

    def epoch_end(self):
        losses = torch.stack([output[0].detach() for output in self.outputs])
        if MENDED:
            right = torch.stack([output[1] for output in self.outputs]).mean()
        else:
            right = torch.stack([(o[1].argmax(1) == o[2]).float().mean() for o in self.outputs]).mean()
        self.outputs.clear()
        return losses.mean().item(), right.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 8))
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 12, 14))
    parser.add_argument("--classes", type=int, default=12)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    images = torch.rand(1600, 3, args.size, args.size)
    masks = (images.mean(1) * args.classes).long().clamp(max=args.classes - 1)
    data = TensorDataset(images, masks)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Unet(args.width, args.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    summary = Summary()
    for epoch in range(1_000):
        sampler.set_epoch(epoch)
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            summary.add(loss, logits, y)
        loss, accuracy = summary.epoch_end()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f} accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
