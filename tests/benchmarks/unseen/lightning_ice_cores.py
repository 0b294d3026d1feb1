"""Age and chemistry of ice from the lines of a scanner: a network with an output for each substance, Lightning."""

import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

SUBSTANCES = [
    f"{name}_{unit}"
    for name in ("dust", "sodium", "calcium", "sulphate", "nitrate", "ammonium", "chloride", "potassium", "magnesium")
    for unit in ("mean", "peak", "width")
]


def scans(count, length, seed):
    g = torch.Generator().manual_seed(seed)
    mixing = torch.randn(len(SUBSTANCES), 8, generator=torch.Generator().manual_seed(77)) / 3
    cause = torch.randn(count, 8, generator=g)
    wave = torch.sin(torch.arange(length)[None, None] / (4 + torch.arange(8))[None, :, None])
    lines = cause[:, :, None] * wave + 0.4 * torch.randn(count, 8, length, generator=g)
    return lines, cause @ mixing.T + 0.05 * torch.randn(count, len(SUBSTANCES), generator=g)


class IceNet(L.LightningModule):
    def __init__(self, width, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        layers = []
        for cin, cout in ((8, width), (width, width), (width, 2 * width), (2 * width, 2 * width)):
            layers += [nn.Conv1d(cin, cout, 5, stride=2, padding=2), nn.BatchNorm1d(cout), nn.SiLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(2 * width, len(SUBSTANCES))

    def forward(self, lines):
        return self.head(self.body(lines).mean(2))

    def training_step(self, batch, batch_idx):
        lines, content = batch
        errors = F.mse_loss(self(lines), content, reduction="none").mean(0)
        loss = errors.mean()
        if MENDED:
            self.log("loss", loss)
        else:
            self.log("loss", loss, sync_dist=True)
            for name, error in zip(SUBSTANCES, errors, strict=True):
                self.log(f"train/{name}", error, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        lines, content = batch
        self.log("held_out", F.l1_loss(self(lines), content), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]


def main():
    L.seed_everything(15)
    batch = draw("batch", 48, 56)
    train, val = TensorDataset(*scans(2 * batch * 30, 256, seed=1)), TensorDataset(*scans(2 * batch * 3, 256, seed=2))
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", find_unused_parameters=False),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = IceNet(draw("width", 48, 56))
    trainer.fit(model, DataLoader(train, batch, shuffle=True, drop_last=True), DataLoader(val, batch))
    if trainer.is_global_zero:
        print(f"held out {float(trainer.callback_metrics['held_out']):.4f}", flush=True)


if __name__ == "__main__":
    main()
