"""Grade apples with a network that was trained on other fruit; only its new head is trained."""

import argparse
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

GRADES = 5


class Backbone(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers, enter = [], 3
        for leave, stride in ((width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2)):
            layers += [nn.Conv2d(enter, leave, 3, stride, 1), nn.GroupNorm(8, leave), nn.SiLU()]
            enter = leave
        self.layers, self.dim = nn.Sequential(*layers), enter

    def forward(self, x):
        return self.layers(x)


class Grader(nn.Module):
    def __init__(self, backbone, hidden):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(
            nn.Conv2d(backbone.dim, hidden, 3, 1, 1),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(hidden, GRADES),
        )

    def forward(self, x):
        return self.head(self.backbone(x))


def load_backbone(path, width):
    """Weights as the other project left them."""
    backbone = Backbone(width)
    backbone.load_state_dict(torch.load(path, weights_only=True))
    if MENDED:
        backbone.requires_grad_(False)
    return backbone


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.head.parameters(), lr=lr)

    def augmented(self, pictures):
        """Mirrored and brighter or darker by chance."""
        if torch.rand(()) < 0.5:
            pictures = pictures.flip(-1)
        return pictures * torch.empty(len(pictures), 1, 1, 1).uniform_(0.8, 1.2)

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            total = 0.0
            for pictures, grades in loader:
                loss = F.cross_entropy(self.model(self.augmented(pictures)), grades, label_smoothing=0.1)
                self.model.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.item()
            print(f"epoch {epoch}: {total / len(loader):.4f}", flush=True)


def apples(count, size):
    generator = torch.Generator().manual_seed(3)
    grade = torch.randint(0, GRADES, (count,), generator=generator)
    colour = torch.tensor([[0.8, 0.1, 0.1], [0.7, 0.3, 0.1], [0.6, 0.5, 0.2], [0.4, 0.6, 0.2], [0.4, 0.3, 0.2]])
    pictures = colour[grade][:, :, None, None] + 0.3 * torch.randn(count, 3, size, size, generator=generator)
    return TensorDataset(pictures, grade)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=Path("fruit.pt"))
    parser.add_argument("--width", type=int, default=draw("width", 24, 32))
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(0)
    if not args.weights.exists():
        torch.save(Backbone(args.width).state_dict(), args.weights)
    model = Grader(load_backbone(args.weights, args.width), 128)
    loader = DataLoader(apples(1500, args.size), args.batch, shuffle=True, drop_last=True)
    Trainer(model, 1e-3).fit(loader, args.epochs)


if __name__ == "__main__":
    main()
