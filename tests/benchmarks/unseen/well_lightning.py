"""Lightning: segment small images on two processes."""

import lightning as pl
import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


class Shapes(pl.LightningDataModule):
    def __init__(self, batch, size=48):
        super().__init__()
        self.batch, self.size = batch, size

    def made_up(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        images = torch.rand(count, 3, self.size, self.size, generator=generator)
        masks = (F.avg_pool2d(images.mean(1, keepdim=True), 5, 1, 2).squeeze(1) * 8).long().clamp(0, 3)
        return TensorDataset(images, masks)

    def setup(self, stage):
        self.train, self.held_out = self.made_up(3000, 0), self.made_up(100, 1)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.held_out, self.batch)


class Segmenter(pl.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 1, 1), nn.ReLU()
        )
        self.up = nn.Sequential(nn.ConvTranspose2d(2 * width, width, 2, 2), nn.ReLU(), nn.Conv2d(width, 4, 3, 1, 1))
        self.accuracy = MulticlassAccuracy(num_classes=4)

    def forward(self, x):
        return self.up(self.down(x))

    def training_step(self, batch, index):
        images, masks = batch
        loss = F.cross_entropy(self(images), masks)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        images, masks = batch
        self.accuracy.update(self(images), masks)
        self.log("accuracy", self.accuracy, on_epoch=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10)]


def main():
    pl.seed_everything(0)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=10_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=5,
    )
    trainer.fit(Segmenter(draw("width", 20, 24)), Shapes(draw("batch", 10, 12)))


if __name__ == "__main__":
    main()
