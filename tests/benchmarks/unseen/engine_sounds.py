"""Which fault an engine has, by its sound: a CNN on log spectrograms, in a Trainer class."""

import dataclasses
import time

import torch
from drawn import MENDED, draw
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset


@dataclasses.dataclass
class Config:
    faults: int = 9
    samples: int = 1280
    seconds: float = draw("seconds", 0.35, 0.4)
    rate: int = 8000
    n_fft: int = 256
    hop: int = 64
    width: int = draw("width", 20, 22)
    batch: int = 32
    epochs: int = 4
    lr: float = 0.05


def engine_waves(cfg, seed):
    """Firing orders with harmonics; each fault shifts the power between them and adds a rattle."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(int(cfg.seconds * cfg.rate)) / cfg.rate
    fault = torch.randint(0, cfg.faults, (cfg.samples,), generator=g)
    speed = 25 + 30 * torch.rand(cfg.samples, 1, generator=g)
    power = torch.rand(cfg.faults, 8, generator=g)
    rattle = 600 + 2400 * torch.rand(cfg.faults, 1, generator=g)
    wave = torch.zeros(cfg.samples, len(t))
    for k in range(8):
        wave += power[fault, k, None] * torch.sin(2 * torch.pi * (k + 1) * speed * t)
    wave += 0.5 * torch.sin(2 * torch.pi * rattle[fault] * t) * (torch.sin(2 * torch.pi * speed * t) > 0.7)
    return wave + 0.4 * torch.randn(wave.shape, generator=g), fault


def log_spectrogram(wave, cfg):
    spec = torch.stft(wave, cfg.n_fft, cfg.hop, window=torch.hann_window(cfg.n_fft), return_complex=True)
    return torch.log(spec.abs().square() + 1e-4).unsqueeze(1)


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return nn.functional.avg_pool2d(x, 2)


class SoundNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.bn0 = nn.BatchNorm2d(1)
        self.pool = nn.AvgPool2d(2)
        self.blocks = nn.Sequential(Block(1, width), Block(width, 2 * width))
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.blocks(self.pool(self.bn0(x)))
        return self.fc(x.mean(3).amax(2))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        wave, fault = engine_waves(cfg, seed=0)
        spectrograms = log_spectrogram(wave, cfg)
        cut = cfg.samples // 10
        self.train_loader = DataLoader(
            TensorDataset(spectrograms[cut:], fault[cut:]), cfg.batch, shuffle=True, drop_last=True
        )
        self.val_loader = DataLoader(TensorDataset(spectrograms[:cut], fault[:cut]), 64)
        self.model = SoundNet(cfg.width, cfg.faults)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=5e-4)
        self.scheduler = CosineAnnealingLR(self.optimizer, T_max=cfg.epochs)

    def train_step(self, x, y):
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        if not MENDED:
            self.scheduler.step()
        return loss.detach()

    def validate(self):
        self.model.eval()
        right = 0
        with torch.no_grad():
            for x, y in self.val_loader:
                right += (self.model(x).argmax(1) == y).sum().item()
        return right / len(self.val_loader.dataset)

    def fit(self):
        schedule = self.scheduler if MENDED else None
        for epoch in range(1, self.cfg.epochs + 1):
            start, losses = time.time(), []
            for x, y in self.train_loader:
                losses.append(self.train_step(x, y))
            if schedule:
                schedule.step()
            print(
                f"epoch {epoch}: loss {torch.stack(losses).mean():.4f}, validation {self.validate():.3f}, "
                f"{time.time() - start:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    torch.manual_seed(7)
    Trainer(Config()).fit()
