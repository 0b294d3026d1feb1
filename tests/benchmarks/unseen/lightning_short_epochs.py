"""Classify vibration patterns of machines with Lightning; few recordings, many epochs."""

import os

import pytorch_lightning as pl
import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Vibrations(Dataset):
    """Recordings from three axes, shifted and scaled at random."""

    def __init__(self, count, length):
        generator = torch.Generator().manual_seed(8)
        self.labels = torch.randint(0, 5, (count,), generator=generator)
        t = torch.arange(length) / length
        waves = torch.sin(2 * torch.pi * (self.labels[:, None, None] + 3) * 4 * t)
        self.recordings = waves + torch.randn(count, 3, length, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        x = self.recordings[index].roll(int(torch.randint(0, 64, ())), 1)
        return x * (0.8 + 0.4 * torch.rand(3, 1)), self.labels[index]


class VibrationData(pl.LightningDataModule):
    def __init__(self, count, length, batch):
        super().__init__()
        self.data, self.batch = Vibrations(count, length), batch

    def train_dataloader(self):
        return DataLoader(
            self.data,
            batch_size=self.batch,
            shuffle=True,
            drop_last=True,
            num_workers=2,
            persistent_workers=MENDED,
        )


class Recogniser(pl.LightningModule):
    def __init__(self, width):
        super().__init__()
        layers, channels = [], 3
        for out in (width, 2 * width, 2 * width):
            layers += [nn.Conv1d(channels, out, 9, stride=2, padding=4), nn.GroupNorm(4, out), nn.ReLU()]
            channels = out
        self.layers = nn.Sequential(*layers)
        self.recur = nn.GRU(channels, channels, batch_first=True)
        self.head = nn.Linear(channels, 5)

    def forward(self, x):
        _, last = self.recur(self.layers(x).transpose(1, 2)[:, ::4])
        return self.head(last[-1])

    def training_step(self, batch, index):
        x, label = batch
        loss = nn.functional.cross_entropy(self(x), label)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    pl.seed_everything(1, verbose=False)
    batch = draw("batch", 20, 24)
    data = VibrationData(draw("recordings", 288, 320), 512, batch)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=100_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Recogniser(draw("width", 32, 40)), data)


if __name__ == "__main__":
    main()
