"""Pick the arrival of P and S waves in seismograms, with Lightning: convolutions, then a recurrent layer."""

import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def seismograms(n, length, seed=6):
    """Noise, from p on a high tone, from s on a low, stronger one; class of each eighth sample: before, P, S."""
    g = torch.Generator().manual_seed(seed)
    p = torch.randint(length // 8, length // 2, (n, 1), generator=g)
    s = p + torch.randint(length // 8, length // 3, (n, 1), generator=g)
    t = torch.arange(length)
    wave = 0.3 * torch.randn(n, 3, length, generator=g)
    after_p, after_s = (t - p).clamp(min=0), (t - s).clamp(min=0)
    onset_p = torch.sin(0.9 * after_p) * torch.exp(-after_p / 80)
    onset_s = 2 * torch.sin(0.35 * after_s) * torch.exp(-after_s / 120)
    wave = wave + (onset_p + onset_s).unsqueeze(1) * torch.rand(n, 3, 1, generator=g)
    phase = (t >= p).long() + (t >= s).long()
    return TensorDataset(wave, phase[:, ::8])


class StackedCells(nn.Module):
    """Recurrent layers with layer norm on what goes from one to the next."""

    def __init__(self, enter, hidden, layers):
        super().__init__()
        self.hidden = hidden
        self.cells = nn.ModuleList(nn.LSTMCell(enter if i == 0 else hidden, hidden) for i in range(layers))

    def forward(self, x):
        batch, length, _ = x.shape
        state = [(x.new_zeros(batch, self.hidden), x.new_zeros(batch, self.hidden)) for _ in self.cells]
        outputs = []
        for step in range(length):
            value = x[:, step]
            for i, cell in enumerate(self.cells):
                state[i] = cell(value, state[i])
                value = state[i][0]
            outputs.append(value)
        return torch.stack(outputs, 1)


class Recurrent(nn.LSTM):
    """The same as one call for all steps."""

    def __init__(self, enter, hidden, layers):
        super().__init__(enter, hidden, layers, batch_first=True)

    def forward(self, x):
        return super().forward(x)[0]


class Picker(L.LightningModule):
    def __init__(self, width, hidden, layers, lr):
        super().__init__()
        self.save_hyperparameters()
        self.convs = nn.Sequential(
            nn.Conv1d(3, width, 7, 2, 3),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, 2, 2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 3, 2, 1),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
        )
        recurrent = Recurrent if MENDED else StackedCells
        self.memory = recurrent(2 * width, hidden, layers)
        self.head = nn.Linear(hidden, 3)

    def forward(self, wave):
        return self.head(self.memory(self.convs(wave).transpose(1, 2)))

    def training_step(self, batch, batch_idx):
        wave, phase = batch
        loss = F.cross_entropy(self(wave).flatten(0, 1), phase.flatten())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        wave, phase = batch
        guess = self(wave).argmax(2)
        p_error = ((guess >= 1).int().argmax(1) - (phase >= 1).int().argmax(1)).abs().float().mean()
        self.log_dict({"right": (guess == phase).float().mean(), "p_error": p_error})

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--length", type=int, default=draw("length", 480, 512))
    ap.add_argument("--width", type=int, default=draw("width", 28, 32))
    ap.add_argument("--hidden", type=int, default=96)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()

    L.seed_everything(3, verbose=False)
    train, val = seismograms(40 * args.batch, args.length), seismograms(96, args.length, seed=7)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
    )
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    trainer.fit(Picker(args.width, args.hidden, args.layers, 2e-3), loader, DataLoader(val, 48))
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
