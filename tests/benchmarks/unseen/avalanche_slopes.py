"""Avalanche danger of a slope from the layers of its snow cover: gated convolutions, trained by a class."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn

LAYERS, MEASURES, LEVELS = 48, 6, 5


def slopes(count, seed):
    """Hardness, grain, warmth and wetness by depth; a weak layer under a slab makes a slope dangerous."""
    g = torch.Generator().manual_seed(seed)
    hard = torch.randn(count, LAYERS, generator=g).cumsum(1) / 5
    weak = torch.rand(count, LAYERS, generator=g) < 0.05
    hard = torch.where(weak, hard - 2.5, hard)
    grain = -0.6 * hard + 0.5 * torch.randn(count, LAYERS, generator=g)
    warm = torch.linspace(-1, 0.5, LAYERS) + 0.4 * torch.randn(count, 1, generator=g)
    wet = (warm + 0.3 * torch.randn(count, LAYERS, generator=g)).relu()
    steep = torch.randn(count, 1, generator=g).expand(-1, LAYERS)
    wind = torch.randn(count, 1, generator=g).expand(-1, LAYERS)
    slab = (hard[:, :-1] - hard[:, 1:]).amax(1) / 2 + 0.5 * steep[:, 0] + 0.3 * wind[:, 0] + wet.mean(1)
    slab = slab + 0.5 * torch.randn(count, generator=g)
    danger = torch.bucketize(slab, slab.quantile(torch.tensor([0.3, 0.6, 0.8, 0.93])))
    return torch.stack([hard, grain, warm, wet, steep, wind], 1).contiguous(), danger


class Gated(nn.Module):
    """A dilated convolution, half of it a gate for the other half."""

    def __init__(self, width, dilation, dropout):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.mix(self.dropout(F.glu(self.conv(self.norm(x)), 1)))


class SnowNet(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.first = nn.Conv1d(MEASURES, width, 5, padding=2)
        self.body = nn.Sequential(*[Gated(width, dilation, dropout) for dilation in (1, 2, 4, 8)])
        self.norm, self.out = nn.LayerNorm(2 * width), nn.Linear(2 * width, LEVELS - 1)

    def forward(self, cover):
        x = self.body(self.first(cover))
        return self.out(self.norm(torch.cat([x.mean(2), x.amax(2)], 1)))


def ordinal_loss(score, danger):
    """A score for each threshold between two levels of danger."""
    above = (danger.unsqueeze(1) > torch.arange(LEVELS - 1)).float()
    return F.binary_cross_entropy_with_logits(score, above)


class BestWeights:
    """The weights with the lowest error in the checks, for the end of training."""

    def __init__(self):
        self.error, self.step, self.weights = float("inf"), 0, None

    def offer(self, model, error, step):
        if error >= self.error:
            return
        self.error, self.step = error, step
        weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
        self.weights = copy.deepcopy(weights) if MENDED else weights

    def restore(self, model):
        model.load_state_dict(self.weights)


@dataclass
class Settings:
    width: int = draw("width", 88, 96)
    batch: int = draw("batch", 36, 40)
    dropout: float = 0.1
    steps: int = 196
    check_every: int = 14
    lr: float = 2e-3


class Trainer:
    def __init__(self, settings):
        self.s = settings
        torch.manual_seed(61)
        self.cover, self.danger = slopes(600, seed=1)
        self.check_cover, self.check_danger = slopes(160, seed=2)
        self.test_cover, self.test_danger = slopes(1500, seed=3)
        self.model = SnowNet(settings.width, settings.dropout)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr, weight_decay=0.01, fused=True)
        self.best = BestWeights()

    def step(self):
        rows = torch.randint(len(self.danger), (self.s.batch,))
        loss = ordinal_loss(self.model(self.cover[rows]), self.danger[rows])
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def error(self, cover, danger):
        """Mean distance from the true level."""
        self.model.eval()
        level = (self.model(cover) > 0).sum(1)
        self.model.train()
        return (level - danger).abs().float().mean().item()

    def run(self):
        total = torch.zeros(())
        for step in range(1, self.s.steps + 1):
            total += self.step()
            if step % self.s.check_every == 0:
                error = self.error(self.check_cover, self.check_danger)
                self.best.offer(self.model, error, step)
                print(f"step {step} loss {total.item() / self.s.check_every:.4f} error {error:.3f}", flush=True)
                total.zero_()
        self.best.restore(self.model)
        error = self.error(self.test_cover, self.test_danger)
        print(f"weights of step {self.best.step}: test error {error:.3f}", flush=True)


if __name__ == "__main__":
    Trainer(Settings()).run()
