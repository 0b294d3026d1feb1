"""Which strings of a harp were plucked, from log-frequency spectra: Lightning, validated each epoch."""

import argparse
import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import draw
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MultilabelF1Score

warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

STRINGS = 34


class Plucks(Dataset):
    """Spectra of up to three strings with partials; noise and gain are drawn anew each time (augmentation)."""

    def __init__(self, n, bins, frames, seed, augment):
        g = torch.Generator().manual_seed(seed)
        self.strings = torch.zeros(n, STRINGS)
        for row in range(n):
            count = int(torch.randint(1, 4, (), generator=g))
            self.strings[row, torch.randperm(STRINGS, generator=g)[:count]] = 1
        place = torch.arange(STRINGS)[:, None] * 2 + torch.tensor([0, 24, 38, 48])
        self.templates = torch.zeros(STRINGS, bins)
        for partial in range(4):
            at = place[:, partial].clamp(max=bins - 1)
            self.templates[torch.arange(STRINGS), at] += 1 / (1 + partial)
        self.fade = torch.exp(-3 * torch.linspace(0, 1, frames))[:, None]
        self.augment = augment

    def __len__(self):
        return len(self.strings)

    def __getitem__(self, i):
        spectrum = self.fade * (self.strings[i] @ self.templates)
        if self.augment:
            spectrum = spectrum * (0.5 + torch.rand(())) + 0.05 * torch.randn(spectrum.shape).abs()
        return torch.log1p(20 * spectrum).unsqueeze(0), self.strings[i]


class HarpNet(L.LightningModule):
    def __init__(self, bins, width, lr, total_steps):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, (3, 7), padding=(1, 3)),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d((2, 1)),
            nn.Conv2d(width, width, (3, 7), padding=(1, 3)),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((1, bins)),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(width * bins, STRINGS),
        )
        self.f1 = MultilabelF1Score(num_labels=STRINGS)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.binary_cross_entropy_with_logits(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.f1.update(scores.sigmoid(), y.int())
        self.log("val_loss", F.binary_cross_entropy_with_logits(scores, y))
        self.log("val_f1", self.f1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.lr, total_steps=self.hparams.total_steps
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--bins", type=int, default=120)
    ap.add_argument("--frames", type=int, default=draw("frames", 20, 24))
    ap.add_argument("--width", type=int, default=draw("width", 10, 12))
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()

    L.seed_everything(12, verbose=False)
    train = Plucks(28 * args.batch, args.bins, args.frames, seed=1, augment=True)
    val = Plucks(128, args.bins, args.frames, seed=2, augment=False)
    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="val_f1", mode="max", save_top_k=1, save_weights_only=True)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=args.epochs,
            callbacks=[best],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            gradient_clip_val=1.0,
        )
        trainer.fit(
            HarpNet(args.bins, args.width, 3e-3, args.epochs * 28),
            DataLoader(train, args.batch, shuffle=True, drop_last=True),
            DataLoader(val, 64),
        )
        print(f"best F1 {float(best.best_model_score):.3f} in {best.best_model_path}")


if __name__ == "__main__":
    main()
