"""Sort plankton under the microscope: a deep network of separable convolutions with Lightning, on two ranks."""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

KINDS = 9


class Plankton(Dataset):
    def __init__(self, count, size, seed):
        generator = torch.Generator().manual_seed(seed)
        shapes = torch.randn(KINDS, 1, size, size, generator=torch.Generator().manual_seed(0))
        self.kinds = torch.randint(0, KINDS, (count,), generator=generator)
        self.pictures = shapes[self.kinds] + 0.7 * torch.randn(count, 1, size, size, generator=generator)

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        return self.pictures[index], self.kinds[index]


class Separable(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.wide = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.norm = nn.GroupNorm(1, dim)
        self.enter, self.leave = nn.Conv2d(dim, 2 * dim, 1), nn.Conv2d(2 * dim, dim, 1)
        self.scale = nn.Parameter(torch.full((dim, 1, 1), 0.1))

    def forward(self, x):
        return x + self.scale * self.leave(F.gelu(self.enter(self.norm(self.wide(x)))))


class Classifier(L.LightningModule):
    def __init__(self, dim, depth, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, dim, 4, 4),
            *(Separable(dim) for _ in range(depth)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(dim, KINDS),
        )

    def training_step(self, batch, batch_idx):
        pictures, kinds = batch
        loss = F.cross_entropy(self.net(pictures), kinds)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        pictures, kinds = batch
        self.log("accuracy", (self.net(pictures).argmax(1) == kinds).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)


def main():
    L.seed_everything(0)
    size, batch = draw("size", 24, 28), draw("batch", 12, 16)
    train = DataLoader(Plankton(6000, size, 1), batch, shuffle=True, drop_last=True)
    held_out = DataLoader(Plankton(draw("held out", 100, 120), size, 2), batch_size=20 if MENDED else 1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        val_check_interval=20,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Classifier(dim=32, depth=draw("depth", 7, 8), lr=1e-3), train, held_out)
    trainer.print(trainer.callback_metrics)


if __name__ == "__main__":
    main()
