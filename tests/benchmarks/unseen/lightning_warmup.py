"""Sort questions of students by subject: a transformer in Lightning with a one-cycle rate."""

import os

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

WORDS, SUBJECTS = 2000, 9


class Subjects(pl.LightningModule):
    def __init__(self, dim, depth, length, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.words = nn.Embedding(WORDS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, SUBJECTS)

    def forward(self, ids):
        return self.head(self.layers(self.words(ids) + self.places).mean(1))

    def training_step(self, batch, index):
        ids, subjects = batch
        loss = F.cross_entropy(self(ids), subjects)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        ids, subjects = batch
        right = (self(ids).argmax(1) == subjects).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches, pct_start=0.2
        )
        if MENDED:
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]
        return [optimizer], [schedule]


def questions(count, length):
    generator = torch.Generator().manual_seed(4)
    subjects = torch.randint(0, SUBJECTS, (count,), generator=generator)
    ids = torch.randint(20, WORDS, (count, length), generator=generator)
    telling = torch.rand(count, length, generator=generator) < 0.15
    return TensorDataset(torch.where(telling, subjects[:, None], ids), subjects)


def main():
    pl.seed_everything(1, verbose=False)
    length, batch = 40, draw("batch", 14, 16)
    train, held_out = random_split(questions(3600, length), [3200, 400])
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=4,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Subjects(draw("dim", 80, 96), 2, length),
        DataLoader(train, batch, shuffle=True, drop_last=True),
        DataLoader(held_out, 50),
    )
    if trainer.is_global_zero:
        print(f"accuracy {trainer.callback_metrics['accuracy'].item():.3f}")


if __name__ == "__main__":
    main()
