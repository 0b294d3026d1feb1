"""Where starlings of a swarm fly next: messages between near birds, neighbours found as the birds move, Lightning."""

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

BIRDS, ROUNDS = 40, 2


def swarms(count, seed):
    """Places and speeds of birds, and the same after two rounds of flocking."""
    g = torch.Generator().manual_seed(seed)
    place = torch.randn(count, BIRDS, 3, generator=g)
    speed = 0.3 * torch.randn(count, BIRDS, 3, generator=g) + 0.3 * torch.randn(count, 1, 3, generator=g)
    start = torch.cat([place, speed], 2)
    for _ in range(ROUNDS):
        gap = place.unsqueeze(1) - place.unsqueeze(2)
        near = torch.exp(-gap.square().sum(3))
        near = near / near.sum(2, keepdim=True)
        pull = (near.unsqueeze(3) * gap).sum(2)
        speed = 0.7 * speed + 0.3 * near @ speed + 0.1 * pull
        place = place + speed
    return start, torch.cat([place, speed], 2)


class Flight(nn.Module):
    """A round: each bird looks at its nearest ones, where they are now."""

    def __init__(self, dim, near):
        super().__init__()
        self.near = near
        self.message = nn.Sequential(nn.Linear(2 * dim + 6, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.state = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.turn = nn.Linear(dim, 3)

    def forward(self, x, place, speed):
        b, n = x.shape[:2]
        with torch.no_grad():
            nearest = torch.cdist(place, place).topk(self.near + 1, largest=False).indices[:, :, 1:]
        at = (nearest + n * torch.arange(b).view(-1, 1, 1)).flatten()
        other = [part.flatten(0, 1)[at].view(b, n, self.near, -1) for part in (x, place, speed)]
        here = x.unsqueeze(2).expand(-1, -1, self.near, -1)
        gap = torch.cat([other[1] - place.unsqueeze(2), other[2] - speed.unsqueeze(2)], 3)
        got = self.message(torch.cat([here, other[0], gap], 3)).mean(2)
        x = x + self.state(torch.cat([x, got], 2))
        speed = speed + 0.1 * self.turn(x)
        return x, place + speed, speed


class SwarmNet(L.LightningModule):
    def __init__(self, dim, near=6, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.first = nn.Linear(3, dim)
        self.rounds = nn.ModuleList(Flight(dim, near) for _ in range(ROUNDS))

    def forward(self, swarm):
        place, speed = swarm.split(3, 2)
        x = self.first(speed)
        for layer in self.rounds:
            x, place, speed = layer(x, place, speed)
        return torch.cat([place, speed], 2)

    def training_step(self, batch, batch_idx):
        swarm, after = batch
        loss = F.mse_loss(self(swarm), after)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        swarm, after = batch
        self.log("error", F.l1_loss(self(swarm), after))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)


def main():
    L.seed_everything(37)
    batch = draw("batch", 14, 16)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        SwarmNet(draw("dim", 80, 88)),
        DataLoader(TensorDataset(*swarms(50 * batch, seed=1)), batch, shuffle=True, drop_last=True),
        DataLoader(TensorDataset(*swarms(4 * batch, seed=2)), batch),
    )
    print(f"error {float(trainer.callback_metrics['error']):.4f}", flush=True)


if __name__ == "__main__":
    main()
