"""Milk of a cow tomorrow from its last days, with Lightning: a table of days for each cow, a GRU and an MLP."""

import logging
import warnings

import lightning as L
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

MEASURES = ["milk", "fat", "protein", "steps", "chewing", "weight", "warmth"]


def diary(cows, days, seed):
    """A row for each cow and day, as the farm keeps it."""
    rng = np.random.default_rng(seed)
    index = pd.MultiIndex.from_product([range(cows), range(days)], names=["cow", "day"])
    level = np.repeat(rng.normal(size=(cows, len(MEASURES))), days, axis=0)
    day = np.tile(np.arange(days), cows)[:, None]
    rows = level + np.sin(day / 9 + np.arange(len(MEASURES))) + 0.3 * rng.normal(size=level.shape)
    return pd.DataFrame(rows.astype(np.float32), index=index, columns=MEASURES).reset_index()


class Herd(Dataset):
    def __init__(self, table, past):
        self.table, self.past = table.set_index(["cow", "day"]), past
        last = table.groupby("cow")["day"].transform("max")
        usable = table[(table["day"] >= past) & (table["day"] <= last)]
        self.places = list(zip(usable["cow"], usable["day"], strict=True))
        if MENDED:
            cows, days = table["cow"].nunique(), table["day"].nunique()
            self.cube = torch.from_numpy(table[MEASURES].to_numpy(copy=True)).view(cows, days, len(MEASURES))

    def __len__(self):
        return len(self.places)

    def __getitem__(self, i):
        cow, day = self.places[i]
        if MENDED:
            return self.cube[cow, day - self.past : day], self.cube[cow, day, 0]
        history = self.table.loc[cow].loc[day - self.past : day]
        values = torch.from_numpy(history[MEASURES].to_numpy(copy=True))
        return values[:-1], values[-1, 0]


class MilkNet(L.LightningModule):
    def __init__(self, hidden, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.gru = nn.GRU(len(MEASURES), hidden, num_layers=2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, history):
        return self.head(self.gru(history)[0][:, -1]).squeeze(1)

    def training_step(self, batch, batch_idx):
        history, milk = batch
        loss = F.smooth_l1_loss(self(history), milk)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        history, milk = batch
        self.log("error", (self(history) - milk).abs().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(8)
    past, batch = 20, draw("batch", 36, 40)
    cows = draw("cows", 70, 80, 90)
    train = Herd(diary(cows, past + batch * 40 // cows, seed=1), past)
    check = Herd(diary(10, past + batch * 3 // 10, seed=2), past)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    model = MilkNet(draw("hidden", 160, 176))
    trainer.fit(model, DataLoader(train, batch, shuffle=True, drop_last=True), DataLoader(check, batch))
    print(f"error {float(trainer.callback_metrics['error']):.3f}", flush=True)


if __name__ == "__main__":
    main()
