"""Which owl hoots, from waveforms: strided convolutions and attention over time, accumulation with Accelerate."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import draw
from torch.utils.data import DataLoader, TensorDataset

OWLS = 7


def hoots(count, length, seed):
    g = torch.Generator().manual_seed(seed)
    owl = torch.randint(OWLS, (count,), generator=g)
    t = torch.arange(length) / 4000
    pitch = (300 + 60 * owl + 15 * torch.randn(count, generator=g)).view(-1, 1)
    calls = (torch.sin(2 * math.pi * (1.5 + 0.3 * owl.view(-1, 1)) * t) > 0.3).float()
    sound = torch.sin(2 * math.pi * pitch * t) * calls + 0.8 * torch.randn(count, length, generator=g)
    return TensorDataset(sound.unsqueeze(1), owl)


def shifted(sound):
    """A start by chance, and a loudness by chance."""
    by = torch.randint(0, sound.shape[-1], (1,)).item()
    return torch.roll(sound, by, -1) * (0.5 + torch.rand(len(sound), 1, 1))


class OwlNet(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv1d(1, width, 32, stride=8, padding=12),
            nn.GroupNorm(4, width),
            nn.GELU(),
            nn.Conv1d(width, 2 * width, 8, stride=4, padding=2),
            nn.GroupNorm(4, 2 * width),
            nn.GELU(),
        )
        layer = nn.TransformerEncoderLayer(2 * width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(2 * width, OWLS)

    def forward(self, sound):
        return self.head(self.encoder(self.convs(sound).transpose(1, 2)).mean(1))


@torch.no_grad()
def held_out(accelerator, model, loader):
    model.eval()
    found = []
    for sound, owl in loader:
        found.append(accelerator.gather_for_metrics((model(sound).argmax(1) == owl).float()))
    model.train()
    return torch.cat(found).mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--width", type=int, default=draw("width", 24, 28))
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 8))
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    set_seed(36)
    per_epoch = 2 * args.batch * args.accumulate * 28
    train = DataLoader(hoots(per_epoch, args.length, 1), args.batch, shuffle=True, drop_last=True)
    test = DataLoader(hoots(203, args.length, 2), 32)
    model = OwlNet(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    set_seed(36, device_specific=True)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for sound, owl in train:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(shifted(sound)), owl)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        mean = accelerator.reduce(total, reduction="mean").item() / len(train)
        right = held_out(accelerator, model, test)
        accelerator.print(f"epoch {epoch} loss {mean:.4f} right {right:.3f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
