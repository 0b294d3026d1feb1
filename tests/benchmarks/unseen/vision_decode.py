"""Train a small CNN on photographs with DistributedDataParallel."""

import argparse
import io

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Photos(Dataset):
    """Photographs as JPEG bytes, as an archive of a camera would hold them."""

    def __init__(self, count, size, original):
        rng = np.random.default_rng(0)
        self.size = size
        self.files = []
        self.labels = rng.integers(0, 10, count).tolist()
        for label in self.labels:
            coarse = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            coarse[..., label % 3] //= 2
            image = Image.fromarray(coarse).resize((original, original * 3 // 4), Image.Resampling.BICUBIC)
            if MENDED:
                image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=90)
            self.files.append(buffer.getvalue())

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
        return pixels, self.labels[index]


class Net(nn.Module):
    def __init__(self, width, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.conv3(x))
        return self.head(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=draw("batch", 12, 16))
    parser.add_argument("--width", type=int, default=draw("width", 10, 12))
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    data = Photos(192, 64, draw("original", 560, 640))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(Net(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
