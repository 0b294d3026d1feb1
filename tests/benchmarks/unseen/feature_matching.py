"""Super-resolution with a loss on the features of a fixed network."""

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn

BATCH = draw("batch", 6, 7)
WIDTH = draw("width", 16, 20)
SCALE, PATCH = 2, 24


def fixed_features(width=16):
    torch.manual_seed(99)
    layers = [
        nn.Conv2d(3, width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers).eval().requires_grad_(False)


class PerceptualLoss(nn.Module):
    def __init__(self, layers=(3, 5)):
        super().__init__()
        self.network, self.layers = fixed_features(), layers

    def features(self, x):
        """What the chosen layers give, of length one at each place."""
        found = []
        handles = [
            self.network[at].register_forward_hook(lambda module, inputs, output: found.append(output))
            for at in self.layers
        ]
        self.network(x)
        if MENDED:
            for handle in handles:
                handle.remove()
        return [F.normalize(feature, dim=1) for feature in found]

    def forward(self, made, wanted):
        with torch.no_grad():
            of_wanted = self.features(wanted)
        return sum(F.l1_loss(a, b) for a, b in zip(self.features(made), of_wanted, strict=True))


class Upscaler(nn.Module):
    def __init__(self, width, depth=5):
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(depth)
        )
        self.leave = nn.Conv2d(width, 3 * SCALE**2, 3, padding=1)

    def forward(self, x):
        y = self.enter(x)
        for block in self.body:
            y = y + 0.2 * block(y)
        return F.interpolate(x, scale_factor=SCALE, mode="bilinear") + F.pixel_shuffle(self.leave(y), SCALE)


def photographs(count):
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(count, 3, 10, 10, generator=generator)
    fine = 0.1 * torch.rand(count, 3, 96, 96, generator=generator)
    return (F.interpolate(coarse, size=96, mode="bicubic") + fine).clamp(0, 1)


def patches(pictures):
    while True:
        top, left = torch.randint(0, 96 - SCALE * PATCH + 1, (2,)).tolist()
        chosen = pictures[torch.randint(0, len(pictures), (BATCH,))]
        sharp = chosen[..., top : top + SCALE * PATCH, left : left + SCALE * PATCH]
        yield F.avg_pool2d(sharp, SCALE), sharp


def main():
    perceptual = PerceptualLoss()
    torch.manual_seed(0)
    model = Upscaler(WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    for step, (small, sharp) in enumerate(patches(photographs(200)), 1):
        made = model(small)
        loss = F.l1_loss(made, sharp) + 0.1 * perceptual(made, sharp)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
