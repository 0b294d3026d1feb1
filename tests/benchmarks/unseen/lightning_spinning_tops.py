"""How a spinning top moves: an equation of motion learnt from short films, checked on long runs, with Lightning."""

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

STATE, BUILD, STEP = 6, 4, 0.05


def motion(state, build):
    """Lean, spin and slide of a top with friction, as the data are made."""
    lean, spin, slide = state.split(2, 1)
    weight, height, rub, tip = build.split(1, 1)
    cross = torch.cat([-lean[:, 1:], lean[:, :1]], 1)
    rate = 0.8 * spin[:, :1] * cross * height + 0.6 * torch.sin(lean) * weight
    slow = -rub * spin + 0.3 * torch.tanh(lean) * tip
    return torch.cat([rate - 0.1 * lean**3, slow, 0.5 * lean * rub - 0.4 * slide], 1)


def runge_kutta(change, state, build, step):
    a = change(state, build)
    b = change(state + 0.5 * step * a, build)
    c = change(state + 0.5 * step * b, build)
    d = change(state + step * c, build)
    return state + step / 6 * (a + 2 * b + 2 * c + d)


def run(change, state, build, steps):
    """States after each of the steps, each from the one before."""
    states = []
    for _ in range(steps):
        state = runge_kutta(change, state, build, STEP)
        states.append(state)
    return torch.stack(states, 1)


def films(count, steps, seed):
    g = torch.Generator().manual_seed(seed)
    state, build = torch.randn(count, STATE, generator=g), 0.3 + torch.rand(count, BUILD, generator=g)
    states = torch.cat([state[:, None], run(motion, state, build, steps)], 1)
    return states + 0.01 * torch.randn(states.shape, generator=g), build


class Films(Dataset):
    """Short parts of films, one from each place."""

    def __init__(self, count, steps, part, seed):
        self.states, self.build = films(count, steps, seed)
        self.part, self.each = part, steps // part

    def __len__(self):
        return len(self.states) * self.each

    def __getitem__(self, i):
        film, at = divmod(i, self.each)
        return self.states[film, at * self.part : (at + 1) * self.part + 1], self.build[film]


class Motion(nn.Module):
    """Change of the state by a small network, with the known friction apart."""

    def __init__(self, hidden):
        super().__init__()
        self.first, self.second = nn.Linear(STATE + BUILD, hidden), nn.Linear(hidden, hidden)
        self.norm, self.out = nn.LayerNorm(hidden), nn.Linear(hidden, STATE)
        self.rub = nn.Parameter(torch.zeros(STATE))

    def forward(self, state, build):
        x = F.silu(self.first(torch.cat([state, build], 1)))
        x = x + F.silu(self.second(self.norm(x)))
        return self.out(x) - F.softplus(self.rub) * state


class TopModel(L.LightningModule):
    def __init__(self, hidden, held, every, lr=2e-3):
        super().__init__()
        self.motion, self.every, self.lr = Motion(hidden), every, lr
        self.held_states, self.held_build = held
        self.long_error = None

    def training_step(self, batch, batch_idx):
        states, build = batch
        return F.mse_loss(run(self.motion, states[:, 0], build, states.shape[1] - 1), states[:, 1:])

    def long_runs(self, tops=24):
        """Mean error over the whole length of films that were kept apart, some tops at a time."""
        self.motion.eval()
        errors = []
        for at in range(0, len(self.held_build), tops):
            states, build = self.held_states[at : at + tops], self.held_build[at : at + tops]
            guess = run(self.motion, states[:, 0], build, states.shape[1] - 1)
            errors.append((guess - states[:, 1:]).abs().mean())
        self.motion.train()
        return torch.stack(errors).mean().item()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step % self.every == 0:
            self.long_error = torch.no_grad()(self.long_runs)() if MENDED else self.long_runs()

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} long runs {self.long_error:.4f}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(47)
    batch, part = draw("batch", 40, 48), 16
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = Films(10 * batch, 5 * part, part, seed=1)
    model = TopModel(draw("hidden", 64, 80), held=films(48, 160, seed=2), every=5)
    trainer.fit(model, DataLoader(train, batch, shuffle=True, drop_last=True))


if __name__ == "__main__":
    main()
