"""Flow of a mountain brook from snow and weather of the last weeks: attention over days, with Lightning."""

import logging
import math
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

MEASURES, DAYS, AHEAD = 7, 60, 7


def valleys(count, days, seed):
    """Snow that piles up when it is cold and melts into the brook when it is warm."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(days)
    warm = 8 * torch.sin(6.28 * t / 365) + 3 * torch.randn(count, days, generator=g)
    rain = torch.rand(count, days, generator=g) ** 4
    snow, flow = torch.zeros(count, days), torch.zeros(count, days)
    for day in range(1, days):
        melt = torch.minimum(snow[:, day - 1], 0.05 * warm[:, day].relu())
        snow[:, day] = snow[:, day - 1] - melt + rain[:, day] * (warm[:, day] < 0)
        flow[:, day] = 0.8 * flow[:, day - 1] + melt + rain[:, day] * (warm[:, day] >= 0)
    rest = torch.randn(count, MEASURES - 4, days, generator=g)
    return torch.cat([torch.stack([flow, warm / 8, rain, snow / 5], 1), rest], 1).transpose(1, 2)


class Windows(Dataset):
    def __init__(self, data, step):
        self.data = data
        self.places = [(v, d) for v in range(len(data)) for d in range(0, data.shape[1] - DAYS - AHEAD, step)]

    def __len__(self):
        return len(self.places)

    def __getitem__(self, i):
        valley, day = self.places[i]
        return self.data[valley, day : day + DAYS], self.data[valley, day + DAYS : day + DAYS + AHEAD, 0]


class DayAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def heads_first(self, x):
        b, days, dim = x.shape
        if MENDED:
            return x.view(b, days, self.heads, dim // self.heads).transpose(1, 2)
        return x.view(b, self.heads, days, dim // self.heads)

    def forward(self, x):
        b, days, dim = x.shape
        q, k, v = (self.heads_first(layer(x)) for layer in (self.query, self.key, self.value))
        score = q @ k.transpose(2, 3) / math.sqrt(dim // self.heads)
        y = score.softmax(3) @ v
        return self.out(y.transpose(1, 2).reshape(b, days, dim))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = DayAttention(dim, heads)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.feed = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.feed(x))


class Brook(L.LightningModule):
    def __init__(self, dim, depth, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.first = nn.Linear(MEASURES, dim)
        self.day = nn.Parameter(0.02 * torch.randn(DAYS, dim))
        self.layers = nn.Sequential(*[EncoderLayer(dim, heads=4) for _ in range(depth)])
        self.out = nn.Linear(dim, AHEAD)

    def forward(self, past):
        return self.out(self.layers(self.first(past) + self.day)[:, -1])

    def training_step(self, batch, batch_idx):
        past, ahead = batch
        return F.huber_loss(self(past), ahead)

    def validation_step(self, batch, batch_idx):
        past, ahead = batch
        self.log("error", F.l1_loss(self(past), ahead))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(22)
    batch = draw("batch", 20, 24)
    data = valleys(16, 730, seed=1)
    train, check = Windows(data[:, :560], step=6), Windows(data[:, 560:], step=12)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(
        Brook(draw("dim", 80, 96), depth=3),
        DataLoader(train, batch, shuffle=True, drop_last=True),
        DataLoader(check, batch),
    )
    print(f"error {float(trainer.callback_metrics['error']):.4f}", flush=True)


if __name__ == "__main__":
    main()
