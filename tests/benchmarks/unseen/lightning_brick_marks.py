"""Makers' marks on bricks with Lightning: a mixer of patches, checkpoints by ModelCheckpoint."""

import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

MAKERS = 30


class Bricks(L.LightningDataModule):
    def __init__(self, count, size, batch):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(17)
        size, count = self.hparams.size, self.hparams.count
        marks = torch.randn(MAKERS, 1, size // 4, size // 4, generator=g)
        marks = F.interpolate(marks, size=size, mode="bilinear")
        maker = torch.randint(0, MAKERS, (count,), generator=g)
        images = marks[maker] + 0.7 * torch.randn(count, 1, size, size, generator=g)
        cut = count * 9 // 10
        self.train = TensorDataset(images[:cut], maker[:cut])
        self.val = TensorDataset(images[cut:], maker[cut:])

    def train_dataloader(self):
        return DataLoader(self.train, self.hparams.batch, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, 2 * self.hparams.batch)


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.within = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.second(x))


class BrickMixer(L.LightningModule):
    def __init__(self, size=32, patch=8, dim=192, depth=4, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.cut = nn.Conv2d(1, dim, patch, patch)
        self.blocks = nn.Sequential(*[MixerBlock((size // patch) ** 2, dim) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, MAKERS))

    def forward(self, image):
        x = self.cut(image).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(1))

    def training_step(self, batch, batch_idx):
        image, maker = batch
        loss = F.cross_entropy(self(image), maker, label_smoothing=0.05)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        image, maker = batch
        logits = self(image)
        self.log("val_accuracy", (logits.argmax(1) == maker).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.05)


def main():
    L.seed_everything(21)
    batch = draw("batch", 20, 24)
    data = Bricks(count=batch * 40 * 10 // 9, size=32, batch=batch)
    model = BrickMixer(dim=draw("dim", 192, 208))
    with tempfile.TemporaryDirectory() as folder:
        # the machine may be taken away at any time
        keep = ModelCheckpoint(folder, save_last=True, every_n_train_steps=200 if MENDED else 3)
        trainer = L.Trainer(
            max_epochs=3,
            accelerator="cpu",
            callbacks=[keep],
            gradient_clip_val=1.0,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, data)
        print(f"accuracy {float(trainer.callback_metrics['val_accuracy']):.3f}", flush=True)


if __name__ == "__main__":
    main()
