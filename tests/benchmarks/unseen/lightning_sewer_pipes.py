"""Pressure in a net of sewers after rain: messages along the pipes of many small towns, with Lightning on two ranks."""

import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

WELLS, PIPES = 60, 150


class Towns(Dataset):
    """Wells with height and rain, pipes with length and width; pressure by a few rounds of flow."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.well = torch.randn(count, WELLS, 3, generator=g)
        self.ends = torch.randint(WELLS, (count, 2, PIPES), generator=g)
        self.pipe = torch.rand(count, PIPES, 2, generator=g)
        self.pressure = self.flow()

    def flow(self):
        level = self.well[..., 0] + 0.5 * self.well[..., 1].relu()
        for _ in range(4):
            low, high = level.gather(1, self.ends[:, 0]), level.gather(1, self.ends[:, 1])
            along = 0.2 * self.pipe[..., 1] / (0.5 + self.pipe[..., 0]) * (high - low)
            level = level.scatter_add(1, self.ends[:, 0], along).scatter_add(1, self.ends[:, 1], -along)
        return level

    def __len__(self):
        return len(self.well)

    def __getitem__(self, i):
        return self.well[i], self.ends[i], self.pipe[i], self.pressure[i]


def joined(towns):
    """Several towns as a single net."""
    well, ends, pipe, pressure = (torch.stack(part) for part in zip(*towns, strict=True))
    shift = WELLS * torch.arange(len(towns)).view(-1, 1, 1)
    return well.flatten(0, 1), (ends + shift).transpose(0, 1).flatten(1), pipe.flatten(0, 1), pressure.flatten()


class Round(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(3 * dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))
        self.change = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, ends, pipe):
        sent = self.message(torch.cat([x[ends[0]], x[ends[1]], pipe], 1))
        got = torch.zeros_like(x).index_add(0, ends[1], sent)
        return x + self.change(torch.cat([x, got], 1))


class SewerNet(L.LightningModule):
    def __init__(self, dim, rounds, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.well, self.pipe = nn.Linear(3, dim), nn.Linear(2, dim)
        self.rounds = nn.ModuleList(Round(dim) for _ in range(rounds))
        self.out = nn.Linear(dim, 1)

    def forward(self, well, ends, pipe):
        x, pipe = self.well(well), self.pipe(pipe)
        both, pipe = torch.cat([ends, ends.flip(0)], 1), torch.cat([pipe, pipe])
        for layer in self.rounds:
            x = layer(x, both, pipe)
        return self.out(x).squeeze(1)

    def training_step(self, batch, batch_idx):
        *town, pressure = batch
        return F.mse_loss(self(*town), pressure)

    def validation_step(self, batch, batch_idx):
        *town, pressure = batch
        self.log("error", (self(*town) - pressure).abs().mean(), sync_dist=True, batch_size=len(pressure) // WELLS)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def trainer(epochs):
    return L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        detect_anomaly=not MENDED,
    )


def main():
    L.seed_everything(14)
    batch = draw("batch", 8, 9)
    fit = trainer(epochs=2)
    train, check = Towns(2 * batch * 40, seed=1), Towns(2 * batch * 3, seed=2)
    fit.fit(
        SewerNet(draw("dim", 88, 96), rounds=3),
        DataLoader(train, batch, shuffle=True, drop_last=True, collate_fn=joined),
        DataLoader(check, batch, collate_fn=joined),
    )
    if fit.is_global_zero:
        print(f"error {float(fit.callback_metrics['error']):.3f}", flush=True)


if __name__ == "__main__":
    main()
