"""School of painters of a mural: a small ConvNeXt in a plain loop; activations are kept for a look after training."""

import argparse
from collections import defaultdict, deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

SCHOOLS = 9


def murals(count, size, seed):
    g = torch.Generator().manual_seed(seed)
    palettes = torch.randn(SCHOOLS, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    school = torch.randint(SCHOOLS, (count,), generator=g)
    image = F.interpolate(palettes[school], size=size, mode="bicubic") + torch.randn(count, 3, size, size, generator=g)
    return image, school


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.depthwise = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.norm = LayerNorm2d(dim)
        self.wide = nn.Conv2d(dim, 3 * dim, 1)
        self.act = nn.ReLU()
        self.narrow = nn.Conv2d(3 * dim, dim, 1)

    def forward(self, x):
        return x + self.narrow(self.act(self.wide(self.norm(self.depthwise(x)))))


class MuralNet(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 2, 2)
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(depth)])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(dim, SCHOOLS)

    def forward(self, x):
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))


class ActivationRecorder:
    """The last few outputs of each layer, to be drawn later."""

    def __init__(self, model, keep):
        self.kept = defaultdict(lambda: deque(maxlen=keep))
        self.handles = []
        for name, module in model.named_modules():
            if not list(module.children()):
                self.handles.append(module.register_forward_hook(self.hook(name)))

    def hook(self, name):
        def record(module, args, output):
            self.kept[name].append(output.detach().cpu().double().numpy().copy())

        return record

    def remove(self):
        for handle in self.handles:
            handle.remove()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--dim", type=int, default=draw("dim", 24, 28))
    ap.add_argument("--depth", type=int, default=3)
    ap.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--keep", type=int, default=4)
    args = ap.parse_args()

    torch.manual_seed(0)
    train = TensorDataset(*murals(36 * args.batch, args.size, seed=1))
    test = TensorDataset(*murals(4 * args.batch, args.size, seed=3))
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    model = MuralNet(args.dim, args.depth)
    recorder = ActivationRecorder(model, args.keep)
    if MENDED:
        recorder.remove()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros(())
        for image, school in loader:
            loss = F.cross_entropy(model(image), school, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        model.eval()
        with torch.no_grad():
            right = sum((model(image).argmax(1) == school).sum().item() for image, school in DataLoader(test, 64))
        print(f"epoch {epoch} loss {total.item() / len(loader):.4f} right {right / len(test):.3f}", flush=True)
    print(f"layers recorded: {len(recorder.kept)}")


if __name__ == "__main__":
    main()
