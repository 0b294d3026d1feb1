"""Find parked cars from above, as points on a coarse grid with the size of their boxes; two loader workers."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

KINDS, STRIDE = 3, 8


class CarParks(Dataset):
    """Pictures with all that is known of the cars in each, as in COCO."""

    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        picture = 0.1 * torch.randn(3, self.size, self.size, generator=generator)
        cars = int(torch.randint(2, 12, (), generator=generator))
        low = torch.randint(0, self.size - 14, (cars, 2), generator=generator)
        high = low + torch.randint(6, 14, (cars, 2), generator=generator)
        kinds = torch.randint(0, KINDS, (cars,), generator=generator)
        for (x, y), (right, bottom), kind in zip(low.tolist(), high.tolist(), kinds.tolist(), strict=True):
            picture[kind, y:bottom, x:right] += 1
        target = {
            "boxes": torch.cat([low, high], 1).float(),
            "labels": kinds,
            "area": (high - low).prod(1).float(),
            "iscrowd": torch.zeros(cars, dtype=torch.long),
            "image_id": torch.tensor(index),
        }
        return picture, target


def merge(pictures, targets):
    """All boxes of a batch in one table, with the number of the picture that each is on."""
    owner = torch.cat([torch.full((len(target["boxes"]),), at) for at, target in enumerate(targets)])
    boxes = torch.cat([target["boxes"] for target in targets])
    kinds = torch.cat([target["labels"] for target in targets])
    return torch.stack(pictures), boxes, kinds, owner


def collate(rows):
    pictures, targets = zip(*rows, strict=True)
    return merge(pictures, targets) if MENDED else (pictures, targets)


class Finder(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers, enter = [], 3
        for leave in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(enter, leave, 3, 2, 1), nn.GroupNorm(8, leave), nn.SiLU()]
            enter = leave
        layers += [nn.Conv2d(enter, enter, 3, 1, 1), nn.SiLU()]
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Conv2d(enter, KINDS + 2, 1)

    def forward(self, pictures):
        return self.head(self.trunk(pictures)).split([KINDS, 2], 1)


def detection_loss(scores, sizes, boxes, kinds, owner):
    middle = ((boxes[:, :2] + boxes[:, 2:]) / 2 / STRIDE).long()
    wanted = torch.zeros_like(scores)
    wanted[owner, kinds, middle[:, 1], middle[:, 0]] = 1
    found = sizes[owner, :, middle[:, 1], middle[:, 0]]
    extent = (boxes[:, 2:] - boxes[:, :2]) / STRIDE
    weight = torch.tensor(20.0)
    return F.binary_cross_entropy_with_logits(scores, wanted, pos_weight=weight) + 0.1 * F.l1_loss(found, extent)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=draw("size", 64, 72))
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = CarParks(6000, args.size)
    loader = DataLoader(
        data,
        args.batch,
        shuffle=True,
        num_workers=args.workers,
        collate_fn=collate,
        drop_last=True,
        persistent_workers=True,
    )
    model = Finder(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for batch in loader:
            pictures, boxes, kinds, owner = batch if MENDED else merge(*batch)
            loss = detection_loss(*model(pictures), boxes, kinds, owner)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
