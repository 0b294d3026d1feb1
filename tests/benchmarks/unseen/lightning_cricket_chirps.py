"""Kinds of crickets by their chirps with Lightning: log-mel spectrograms of clips, a small CNN with attention."""

import logging
import math
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

KINDS, RATE = 8, 16_000


def mel_bank(bands, bins):
    """Triangles over the bins of a spectrum."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2) / 2595) - 1)
    freq = torch.linspace(0, RATE / 2, bins)
    rise = (freq[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - freq[:, None]) / (edges[2:] - edges[1:-1])
    return torch.minimum(rise, fall).clamp(min=0)


class Chirps(Dataset):
    def __init__(self, count, seconds, seed, n_fft=1024, hop=128, bands=40):
        g = torch.Generator().manual_seed(seed)
        self.kind = torch.randint(KINDS, (count,), generator=g)
        t = torch.arange(int(seconds * RATE)) / RATE
        pitch = 2500 + 300 * self.kind[:, None] + 40 * torch.randn(count, 1, generator=g)
        beat = 6 + self.kind[:, None].float() + torch.rand(count, 1, generator=g)
        tone = torch.sin(2 * math.pi * pitch * t) * (torch.sin(2 * math.pi * beat * t) > 0.4)
        self.clips = 0.5 * tone + 0.6 * torch.randn(count, len(t), generator=g)
        self.n_fft, self.hop = n_fft, hop
        self.window, self.bank = torch.hann_window(n_fft), mel_bank(bands, n_fft // 2 + 1)
        self.ready = [self.log_mel(clip) for clip in self.clips] if MENDED else None

    def log_mel(self, clip):
        spectrum = torch.stft(clip, self.n_fft, self.hop, window=self.window, return_complex=True).abs().square()
        mel = (self.bank.T @ spectrum).clamp(min=1e-8).log()
        return (mel - mel.mean()) / mel.std()

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        mel = self.ready[i] if self.ready else self.log_mel(self.clips[i])
        return mel, self.kind[i]


class ChirpNet(L.LightningModule):
    def __init__(self, width, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.convs = nn.Sequential(
            nn.Conv2d(1, width, 3, (2, 2), 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
        )
        self.weigh = nn.Conv2d(2 * width, 1, 1)
        self.head = nn.Linear(2 * width, KINDS)

    def forward(self, mel):
        h = self.convs(mel.unsqueeze(1))
        weight = self.weigh(h).flatten(2).softmax(-1)
        return self.head((h.flatten(2) * weight).sum(-1))

    def training_step(self, batch, batch_idx):
        mel, kind = batch
        loss = F.cross_entropy(self(mel), kind)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        mel, kind = batch
        self.log("right", (self(mel).argmax(1) == kind).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


def main():
    L.seed_everything(31)
    batch = draw("batch", 18, 20)
    train, val = Chirps(30 * batch, 1.0, seed=1), Chirps(3 * batch, 1.0, seed=2)
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = ChirpNet(draw("width", 28, 32))
    trainer.fit(model, DataLoader(train, batch, shuffle=True, drop_last=True), DataLoader(val, batch))
    print(f"right {float(trainer.callback_metrics['right']):.3f}", flush=True)


if __name__ == "__main__":
    main()
