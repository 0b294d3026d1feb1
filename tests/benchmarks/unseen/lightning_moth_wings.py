"""Moths by their wings with Lightning: a convolutional network, and an average of its weights for the check."""

import copy
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

MOTHS = 11


def wings(count, size, seed):
    g = torch.Generator().manual_seed(seed)
    scales = torch.randn(MOTHS, 3, 6, 6, generator=torch.Generator().manual_seed(17))
    scales = F.interpolate(scales, size=size, mode="bicubic")
    moth = torch.randint(MOTHS, (count,), generator=g)
    return scales[moth] + 0.8 * torch.randn(count, 3, size, size, generator=g), moth


class WingNet(nn.Sequential):
    def __init__(self, width):
        super().__init__(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.GroupNorm(4, 2 * width),
            nn.SiLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8 * width, MOTHS),
        )


class Collection(L.LightningModule):
    def __init__(self, width, decay=0.98, lr=1.5e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = WingNet(width)
        self.slow = copy.deepcopy(self.net).eval().requires_grad_(False)

    def training_step(self, batch, batch_idx):
        photo, moth = batch
        photo = torch.where(torch.rand(len(photo), 1, 1, 1) < 0.5, photo.flip(3), photo)
        loss = F.cross_entropy(self.net(photo), moth, label_smoothing=0.1)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        torch._foreach_lerp_(list(self.slow.parameters()), list(self.net.parameters()), 1 - self.hparams.decay)

    def validation_step(self, batch, batch_idx):
        photo, moth = batch
        self.slow.eval()
        self.log("right", (self.slow(photo).argmax(1) == moth).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=self.hparams.lr, weight_decay=0.02)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(29)
    batch, size = draw("batch", 24, 28), 40
    train, val = TensorDataset(*wings(36 * batch, size, seed=1)), TensorDataset(*wings(5 * batch, size, seed=2))
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Collection(draw("width", 28, 32))
    trainer.fit(model, DataLoader(train, batch, shuffle=True, drop_last=True), DataLoader(val, batch))
    print(f"right {float(trainer.callback_metrics['right']):.3f}", flush=True)


if __name__ == "__main__":
    main()
