"""Cells in the skin of an onion, each by itself: vectors of a small U-Net, grouped, Lightning on two ranks."""

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

MOST = 10


class Slides(Dataset):
    """Cells around random centres, darker at their walls; number 0 is between the cells."""

    def __init__(self, count, size, seed):
        g = torch.Generator().manual_seed(seed)
        y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        self.slide, self.cells = torch.zeros(count, 1, size, size), torch.zeros(count, size, size, dtype=torch.long)
        for i in range(count):
            centre = size * torch.rand(int(torch.randint(6, MOST + 1, (), generator=g)), 2, generator=g)
            away = ((y - centre[:, :1, None]) ** 2 + (x - centre[:, 1:, None]) ** 2 / 2).sqrt()
            near = away.topk(min(2, len(away)), 0, largest=False).values
            wall = (near[1] - near[0]) < 1.5
            cells = (away.argmin(0) + 1).masked_fill(wall, 0)
            numbers = cells.unique()
            self.cells[i] = torch.searchsorted(numbers, cells) if numbers[0] == 0 else cells
            self.slide[i, 0] = 0.7 - 0.5 * wall + 0.15 * torch.randn(size, size, generator=g)

    def __len__(self):
        return len(self.slide)

    def __getitem__(self, i):
        return self.slide[i], self.cells[i]


def two(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, 1, 1),
        nn.GroupNorm(4, n_out),
        nn.SiLU(),
        nn.Conv2d(n_out, n_out, 3, 1, 1),
        nn.GroupNorm(4, n_out),
        nn.SiLU(),
    )


class UNet(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.down = nn.ModuleList([two(3, width), two(width, 2 * width), two(2 * width, 3 * width)])
        self.up = nn.ModuleList([two(5 * width, 2 * width), two(3 * width, width)])
        self.out = nn.Conv2d(width, dim, 1)

    def forward(self, slide):
        side = torch.linspace(-1, 1, slide.shape[-1]).expand(len(slide), 1, slide.shape[-1], -1)
        fine = self.down[0](torch.cat([slide, side, side.transpose(2, 3)], 1))
        middle = self.down[1](F.max_pool2d(fine, 2))
        x = self.down[2](F.max_pool2d(middle, 2))
        x = self.up[0](torch.cat([F.interpolate(x, scale_factor=2), middle], 1))
        return self.out(self.up[1](torch.cat([F.interpolate(x, scale_factor=2), fine], 1)))


class GroupingLoss(nn.Module):
    """Vectors of a cell are drawn to their mean, the means of two cells of a slide are pushed apart."""

    def __init__(self, pull=0.5, push=1.5):
        super().__init__()
        self.pull, self.push = pull, push

    def of_slide(self, vectors, cells):
        means, pulled = [], 0.0
        for number in range(1, int(cells.max()) + 1):
            inside = vectors[:, cells == number]
            mean = inside.mean(1)
            far = (inside - mean[:, None]).norm(dim=0)
            pulled = pulled + F.relu(far - self.pull).square().mean()
            means.append(mean)
        pushed, pairs = 0.0, len(means) * (len(means) - 1) / 2
        for i in range(len(means)):
            for j in range(i + 1, len(means)):
                pushed = pushed + F.relu(2 * self.push - (means[i] - means[j]).norm()).square()
        return pulled / len(means) + pushed / pairs

    def at_once(self, vectors, cells):
        own = F.one_hot(cells.flatten(1), MOST + 1)[..., 1:].transpose(1, 2).float()
        size, vectors = own.sum(2), vectors.flatten(2)
        there, count = size > 0, (size > 0).sum(1)
        means = torch.einsum("bkp,bdp->bkd", own, vectors) / size.clamp(min=1)[..., None]
        far = (vectors - torch.einsum("bkp,bkd->bdp", own, means)).norm(dim=1)
        pulled = torch.einsum("bkp,bp->bk", own, F.relu(far - self.pull).square()) / size.clamp(min=1)
        i, j = torch.triu_indices(MOST, MOST, 1)
        both = there[:, i] & there[:, j]
        apart = (means[:, i] - means[:, j]).square().sum(2)
        gap = F.relu(2 * self.push - torch.where(both, apart, torch.ones(())).sqrt()).square() * both
        return (pulled.sum(1) / count + gap.sum(1) / both.sum(1)).mean()

    def forward(self, vectors, cells):
        if MENDED:
            return self.at_once(vectors, cells)
        return torch.stack([self.of_slide(v, c) for v, c in zip(vectors, cells, strict=True)]).mean()


class OnionModel(L.LightningModule):
    def __init__(self, width, dim=8, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net, self.grouping = UNet(width, dim), GroupingLoss()

    def training_step(self, batch, batch_idx):
        slide, cells = batch
        return self.grouping(self.net(slide), cells)

    def validation_step(self, batch, batch_idx):
        slide, _ = batch
        self.log("spread", self.net(slide).flatten(2).std(2).mean(), sync_dist=True, batch_size=len(slide))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)


def main():
    L.seed_everything(66)
    batch, size = draw("batch", 6, 7), 44
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train, check = Slides(2 * batch * 45, size, seed=1), Slides(2 * batch * 3, size, seed=2)
    trainer.fit(
        OnionModel(draw("width", 12, 16)),
        DataLoader(train, batch, shuffle=True, drop_last=True),
        DataLoader(check, batch),
    )
    if trainer.is_global_zero:
        print(f"spread {float(trainer.callback_metrics['spread']):.3f}", flush=True)


if __name__ == "__main__":
    main()
