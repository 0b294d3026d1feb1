"""Where kelp grows off a coast, from satellite tiles of six bands: a small U-Net and two optimizers, Lightning."""

import logging
import math
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

BANDS = 6


def tiles(count, size, seed):
    """Water with glint and silt; kelp is bright in the near infrared, where it reaches the surface."""
    g = torch.Generator().manual_seed(seed)

    def field(cells):
        noise = torch.randn(count, 1, cells, cells, generator=g)
        return F.interpolate(noise, size=size, mode="bicubic", align_corners=False)

    depth, silt, glint = field(4), field(5), field(12).relu()
    kelp = ((field(8) - 0.6 * depth) > 0.5).float()
    water = torch.tensor([0.3, 0.4, 0.3, 0.1, 0.0, -0.1]).view(1, BANDS, 1, 1)
    leaf = torch.tensor([-0.1, 0.1, -0.1, 0.5, 0.9, 0.2]).view(1, BANDS, 1, 1)
    mud = torch.tensor([0.1, 0.2, 0.4, 0.3, 0.1, 0.0]).view(1, BANDS, 1, 1)
    bands = water * depth + leaf * kelp + mud * silt + 0.5 * glint
    return bands + 0.4 * torch.randn(bands.shape, generator=g), kelp


def layer(n_in, n_out, stride=1):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.GroupNorm(8, n_out), nn.SiLU())


class KelpNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.top = nn.Sequential(layer(BANDS, width), layer(width, width))
        self.down = nn.Sequential(layer(width, 2 * width, 2), layer(2 * width, 2 * width))
        self.deep = nn.Sequential(layer(2 * width, 3 * width, 2), layer(3 * width, 3 * width))
        self.up = layer(5 * width, 2 * width)
        self.last = layer(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, bands):
        top = self.top(bands)
        down = self.down(top)
        deep = self.deep(down)
        x = self.up(torch.cat([F.interpolate(deep, scale_factor=2), down], 1))
        x = self.last(torch.cat([F.interpolate(x, scale_factor=2), top], 1))
        return self.out(x)


def dice_loss(score, kelp):
    share = score.sigmoid()
    both = (share * kelp).sum((1, 2, 3))
    return (1 - (2 * both + 1) / (share.sum((1, 2, 3)) + kelp.sum((1, 2, 3)) + 1)).mean()


class KelpMapper(L.LightningModule):
    """Filters learn by AdamW; scales, shifts and the last layer by SGD. Two optimizers, so steps are made by hand."""

    def __init__(self, width, lr=2e-3, lr_rest=0.02, warmup=8):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.net = KelpNet(width)

    def configure_optimizers(self):
        filters = [p for p in self.net.parameters() if p.dim() > 1]
        rest = [p for p in self.net.parameters() if p.dim() < 2]
        adam = torch.optim.AdamW(filters, lr=self.hparams.lr, weight_decay=0.01)
        sgd = torch.optim.SGD(rest, lr=self.hparams.lr_rest)
        steps, warmup = self.trainer.estimated_stepping_batches, self.hparams.warmup

        def rate(step):
            return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

        return [adam, sgd], [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in (adam, sgd)]

    def on_train_epoch_start(self):
        if not MENDED:
            for optimizer in self.optimizers():
                optimizer.zero_grad()

    def learn(self, loss):
        if MENDED:
            for each in self.optimizers():
                each.zero_grad()
        self.manual_backward(loss)
        for optimizer, schedule in zip(self.optimizers(), self.lr_schedulers(), strict=True):
            optimizer.step()
            schedule.step()

    def training_step(self, batch, batch_idx):
        bands, kelp = batch
        score = self.net(bands)
        loss = F.binary_cross_entropy_with_logits(score, kelp) + dice_loss(score, kelp)
        self.learn(loss)
        self.log("loss", loss.detach(), on_step=False, on_epoch=True, batch_size=len(kelp))

    def validation_step(self, batch, batch_idx):
        bands, kelp = batch
        found = self.net(bands) > 0
        both = (found & (kelp > 0)).sum((1, 2, 3))
        either = (found | (kelp > 0)).sum((1, 2, 3))
        self.log("overlap", ((both + 1) / (either + 1)).mean(), batch_size=len(kelp))


def main():
    L.seed_everything(62)
    size, batch = 32, draw("batch", 8, 10)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        KelpMapper(draw("width", 32, 40)),
        DataLoader(TensorDataset(*tiles(36 * batch, size, seed=1)), batch, shuffle=True, drop_last=True),
        DataLoader(TensorDataset(*tiles(3 * batch, size, seed=2)), batch),
    )
    figures = trainer.callback_metrics
    print(f"loss {float(figures['loss']):.4f} overlap {float(figures['overlap']):.3f}", flush=True)


if __name__ == "__main__":
    main()
