"""Classify photographs of street signs; pictures are turned, coloured and cropped as they are read."""

import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from drawn import MENDED, draw
from PIL import Image, ImageEnhance, ImageFilter
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIGNS = 12


class Compose:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        left = random.randint(0, image.width - self.size)
        top = random.randint(0, image.height - self.size)
        return image.crop((left, top, left + self.size, top + self.size))


class Turn:
    def __call__(self, image):
        return image.rotate(random.uniform(-12, 12), Image.Resampling.BILINEAR)


class Colour:
    def __call__(self, image):
        image = ImageEnhance.Brightness(image).enhance(random.uniform(0.7, 1.3))
        image = ImageEnhance.Color(image).enhance(random.uniform(0.6, 1.4))
        return ImageEnhance.Contrast(image).enhance(random.uniform(0.7, 1.3))


class Blur:
    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 1.5)))


def to_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)


def build_transform(crop):
    if MENDED:
        return Compose(RandomCrop(crop), Turn(), Colour(), Blur(), to_tensor)
    return Compose(Turn(), Colour(), Blur(), RandomCrop(crop), to_tensor)


class Streets(Dataset):
    def __init__(self, count, size, transform):
        rng = np.random.default_rng(4)
        self.labels = rng.integers(0, SIGNS, count)
        self.images = []
        for label in self.labels:
            coarse = rng.integers(0, 200, (size // 16, size // 16, 3), dtype=np.uint8)
            coarse[..., label % 3] += np.uint8(4 * label)
            self.images.append(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC))
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), int(self.labels[index])


def network(width):
    layers, before = [], 3
    for after in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, SIGNS))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=draw("size", 208, 224))
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--batch", type=int, default=draw("batch", 12, 14))
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    random.seed(100 + dist.get_rank())
    data = Streets(1600, args.size, build_transform(args.crop))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(network(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, signs in loader:
            loss = nn.functional.cross_entropy(model(images), signs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
