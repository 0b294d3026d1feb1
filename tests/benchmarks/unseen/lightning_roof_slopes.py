"""Estimate how steep and which way a roof is from a tile of an aerial survey, with Lightning on two ranks."""

import argparse
import warnings

import lightning
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchmetrics
from drawn import draw
from torch.utils.data import DataLoader, Dataset


class Roofs(Dataset):
    """Heights of a tile as whole centimetres, and the plane that they lie on."""

    def __init__(self, count, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.slope = torch.rand(count, 2, generator=generator) * 2 - 1
        row, column = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
        plane = self.slope[:, 0, None, None] * row + self.slope[:, 1, None, None] * column
        self.heights = (100 * (plane + 0.3 * torch.randn(count, size, size, generator=generator))).short()

    def __len__(self):
        return len(self.slope)

    def __getitem__(self, index):
        return self.heights[index].float().unsqueeze(0) / 100, self.slope[index]


class Slopes(lightning.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.lr = lr
        layers, enter = [], 1
        for leave in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(enter, leave, 3, 1, 1, bias=False), nn.BatchNorm2d(leave), nn.SiLU(), nn.AvgPool2d(2)]
            enter = leave
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * enter, 2))
        self.error = torchmetrics.MeanAbsoluteError()

    def training_step(self, batch, index):
        heights, slope = batch
        loss = F.smooth_l1_loss(self.net(heights), slope)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        heights, slope = batch
        self.error(self.net(heights), slope)
        self.log("error", self.error, on_step=False, on_epoch=True)

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} ends", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=draw("width", 24, 28))
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 22))
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    lightning.seed_everything(0)
    train = DataLoader(Roofs(2560, args.size, 1), args.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(Roofs(96, args.size, 2), 24)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Slopes(args.width, 3e-3), train, held_out)


if __name__ == "__main__":
    main()
