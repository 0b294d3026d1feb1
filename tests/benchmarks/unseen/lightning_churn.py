"""Customers who leave: a tabular network in Lightning, with the area under the curve as its metric."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision


class Block(nn.Module):
    def __init__(self, width, drop):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Dropout(drop), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + self.net(x)


class Churn(pl.LightningModule):
    def __init__(self, features, width, depth, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(features, width), *(Block(width, 0.1) for _ in range(depth)), nn.Linear(width, 1)
        )
        self.train_auc, self.train_ap = BinaryAUROC(), BinaryAveragePrecision()
        self.val_auc = BinaryAUROC()

    def forward(self, x):
        return self.net(x).squeeze(1)

    def training_step(self, batch, index):
        x, left = batch
        logits = self(x)
        loss = F.binary_cross_entropy_with_logits(logits, left)
        self.log("loss", loss)
        self.watch(logits.detach(), left.int())
        return loss

    def watch(self, logits, left):
        self.train_auc.update(logits, left)
        self.train_ap.update(logits, left)
        if not MENDED:
            self.log("auc", self.train_auc.compute())
            self.log("precision", self.train_ap.compute())

    def on_train_epoch_end(self):
        self.log("train_auc", self.train_auc.compute())
        self.log("train_precision", self.train_ap.compute())
        self.train_auc.reset()
        self.train_ap.reset()

    def validation_step(self, batch, index):
        x, left = batch
        self.val_auc.update(self(x), left.int())
        self.log("val_auc", self.val_auc, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)


def customers(count, features, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    leaning = x[:, 0] * x[:, 1] + 0.5 * x[:, 2] + torch.randn(count, generator=generator)
    return TensorDataset(x, (leaning > 1).float())


def loader(data, batch):
    return DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), batch, drop_last=True))


def main():
    pl.seed_everything(5, verbose=False)
    batch, width = draw("batch", 896, 1024), draw("width", 96, 112)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Churn(24, width, 3), loader(customers(120_000, 24, 1), batch), loader(customers(8_000, 24, 2), 2 * batch)
    )


if __name__ == "__main__":
    main()
