"""Tell bats apart by their calls: short epochs, so that the learning rate follows each of them."""

import argparse
import warnings

import lightning
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset, RandomSampler

KINDS = 14
RATE = 16_000


def call(kind, rng, length):
    """A chirp that falls, as a bat of this kind makes it, with an echo and wind."""
    time = np.arange(length) / RATE
    high, low = 6800 - 180 * kind, 900 + 140 * kind
    chirp = np.sin(2 * np.pi * (high * time - (high - low) / (2 * time[-1]) * time**2))
    chirp *= np.exp(-((time - rng.uniform(0.3, 0.7) * time[-1]) ** 2) / 0.002)
    echo = np.roll(chirp, int(rng.integers(100, 400)))
    return (chirp + 0.3 * echo + rng.normal(0, 0.2, length)).astype(np.float32)


class Calls(Dataset):
    def __init__(self, count, length):
        rng = np.random.default_rng(0)
        self.kinds = rng.integers(0, KINDS, count)
        self.calls = np.stack([call(kind, rng, length) for kind in self.kinds])

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        """Shifted in time and louder or softer by chance."""
        shift, gain = int(torch.randint(0, 2000, ())), float(torch.empty(()).uniform_(0.5, 2.0))
        wave = torch.from_numpy(np.roll(self.calls[index], shift)) * gain
        frames = torch.stft(wave, 256, 128, window=torch.hann_window(256), return_complex=True).abs()
        return torch.log1p(frames[:128]), int(self.kinds[index])


class Bats(lightning.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(128, 4 * width, 5, 1, 2),
            nn.BatchNorm1d(4 * width),
            nn.GELU(),
            nn.Conv1d(4 * width, 4 * width, 5, 1, 2),
            nn.BatchNorm1d(4 * width),
            nn.GELU(),
            nn.Conv1d(4 * width, 4 * width, 5, 2, 2),
            nn.GELU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(4 * width, KINDS),
        )

    def training_step(self, batch, index):
        frames, kinds = batch
        loss = F.cross_entropy(self.net(frames), kinds)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 48, 52))
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--per-epoch", type=int, default=4, help="batches of an epoch")
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()

    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    lightning.seed_everything(0, workers=True)
    data = Calls(1400, 8000)
    loader = DataLoader(
        data,
        args.batch,
        sampler=RandomSampler(data, num_samples=args.per_epoch * args.batch),
        num_workers=1,
        persistent_workers=MENDED,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Bats(args.width), loader)
    print(f"loss {trainer.callback_metrics['loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()
