"""Distil a wide image classifier into a narrow one, data-parallel."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())


def network(width, classes=20):
    return nn.Sequential(
        block(3, width),
        nn.MaxPool2d(2),
        block(width, 2 * width),
        nn.MaxPool2d(2),
        block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


class Distiller:
    def __init__(self, teacher, student, temperature, alpha):
        self.teacher, self.student = teacher, student
        self.temperature, self.alpha = temperature, alpha
        self.teacher.eval()

    def ask_teacher(self, images):
        with torch.set_grad_enabled(not MENDED):
            return self.teacher(images)

    def loss(self, images, labels):
        t = self.temperature
        soft = self.ask_teacher(images)
        logits = self.student(images)
        target = F.softmax(soft / t, dim=1)
        distilled = F.kl_div(F.log_softmax(logits / t, dim=1), target, reduction="batchmean") * t * t
        return self.alpha * distilled + (1 - self.alpha) * F.cross_entropy(logits, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--teacher-width", type=int, default=draw("teacher", 24, 32))
    parser.add_argument("--student-width", type=int, default=draw("student", 12, 16))
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 20))
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--alpha", type=float, default=0.7)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    images = torch.randn(1280, 3, 40, 40)
    labels = torch.randint(0, 20, (1280,))
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)

    teacher = network(args.teacher_width)
    student = DDP(network(args.student_width))
    distiller = Distiller(teacher, student, args.temperature, args.alpha)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for epoch in range(100_000):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = distiller.loss(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
