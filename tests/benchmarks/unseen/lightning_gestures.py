"""Recognise gestures from muscle signals: an MLP-Mixer in Lightning."""

import tempfile

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

GESTURES, CHANNELS = 10, 8


class MixerBlock(nn.Module):
    def __init__(self, places, width):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_time = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.over_width = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.over_time(self.before(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_width(self.after(x))


class Gestures(pl.LightningModule):
    def __init__(self, length, patch, width, depth, watch_every, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.cut = nn.Conv1d(CHANNELS, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(MixerBlock(length // patch, width) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, GESTURES))

    def forward(self, x):
        return self.head(self.blocks(self.cut(x).transpose(1, 2)).mean(1))

    def training_step(self, batch, index):
        x, gestures = batch
        loss = F.cross_entropy(self(x), gestures, label_smoothing=0.05)
        self.log("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        if self.global_step % self.hparams.watch_every == 0:
            for name, parameter in self.named_parameters():
                self.log(f"gradient/{name}", parameter.grad.norm())

    def validation_step(self, batch, index):
        x, gestures = batch
        self.log("accuracy", (self(x).argmax(1) == gestures).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.02, fused=True)


def recordings(count, length):
    generator = torch.Generator().manual_seed(3)
    gestures = torch.randint(0, GESTURES, (count,), generator=generator)
    t = torch.linspace(0, 1, length)
    tones = torch.sin(6.28 * (2 + gestures[:, None, None]) * t * torch.linspace(0.5, 1.5, CHANNELS)[:, None])
    return TensorDataset(tones + torch.randn(count, CHANNELS, length, generator=generator), gestures)


def main():
    pl.seed_everything(2, verbose=False)
    train, held_out = random_split(recordings(3600, 192), [3200, 400])
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=4,
            gradient_clip_val=1.0,
            logger=CSVLogger(folder),
            log_every_n_steps=50,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Gestures(192, 8, draw("width", 96, 112), 6, watch_every=50 if MENDED else 1)
        batch = draw("batch", 20, 24)
        trainer.fit(model, DataLoader(train, batch, shuffle=True, drop_last=True), DataLoader(held_out, 100))
        print(f"accuracy {trainer.callback_metrics['accuracy'].item():.3f}")


if __name__ == "__main__":
    main()
