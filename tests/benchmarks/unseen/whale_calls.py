"""Hear which whale calls, from spectrograms of hydrophones; the best weights so far are what is kept."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WHALES = 6


@dataclass
class Settings:
    samples: int = 6000
    width: int = draw("width", 16, 20)
    batch: int = draw("batch", 20, 24)
    lr: float = 3e-3
    check_every: int = 40
    patience: int = 4
    epochs: int = 6


class Listener(nn.Module):
    def __init__(self, width, fft=256):
        super().__init__()
        self.fft = fft
        self.register_buffer("window", torch.hann_window(fft))
        layers, before = [], 1
        for after in (width, 2 * width, 3 * width):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
            before = after
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, WHALES))

    def forward(self, waves):
        power = torch.stft(waves, self.fft, self.fft // 2, window=self.window, return_complex=True).abs()
        return self.net(torch.log1p(power[:, : self.fft // 4]).unsqueeze(1))


class Trainer:
    def __init__(self, model, settings, train, held_out):
        self.model, self.settings = model, settings
        self.train_loader, self.held_out = train, held_out
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, fused=True)
        self.lowest, self.weights, self.bad, self.step = float("inf"), None, 0, 0

    @torch.no_grad()
    def check(self):
        self.model.eval()
        losses = [F.cross_entropy(self.model(waves), whales) for waves, whales in self.held_out]
        self.model.train()
        return torch.stack(losses).mean().item()

    def consider(self, loss):
        """Keep the weights if they are the best so far; tell whether it is time to stop."""
        if loss < self.lowest:
            self.lowest, self.bad = loss, 0
            self.weights = copy.deepcopy(self.model.state_dict()) if MENDED else self.model.state_dict()
        else:
            self.bad += 1
        return self.bad >= self.settings.patience

    def run(self):
        for epoch in range(self.settings.epochs):
            for waves, whales in self.train_loader:
                loss = F.cross_entropy(self.model(waves), whales)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step += 1
                if self.step % self.settings.check_every == 0:
                    held_out = self.check()
                    print(f"epoch {epoch} step {self.step}: {loss.item():.4f}, held out {held_out:.4f}", flush=True)
                    if self.consider(held_out):
                        return

    def finish(self):
        self.model.load_state_dict(self.weights)
        return self.check()


def calls(count, samples, seed):
    generator = torch.Generator().manual_seed(seed)
    whales = torch.randint(0, WHALES, (count,), generator=generator)
    t = torch.arange(samples) / 2000
    sweep = 60 + 40 * whales[:, None] + 25 * torch.sin(2 * t)
    waves = torch.sin(6.28 * sweep * t) + 2.5 * torch.randn(count, samples, generator=generator)
    return TensorDataset(waves, whales)


def main():
    settings = Settings()
    torch.manual_seed(0)
    train = DataLoader(calls(1200, settings.samples, 1), settings.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(calls(96, settings.samples, 2), 48)
    trainer = Trainer(Listener(settings.width), settings, train, held_out)
    trainer.run()
    print(f"kept: {trainer.finish():.4f}, lowest seen {trainer.lowest:.4f}")


if __name__ == "__main__":
    main()
