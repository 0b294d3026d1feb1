"""Water levels of rivers from rain and earlier levels: a recurrent network in Lightning."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rivers(Dataset):
    """Whole batches of windows are cut at once."""

    def __init__(self, rivers, hours, past, ahead, seed):
        generator = torch.Generator().manual_seed(seed)
        rain = torch.relu(torch.randn(rivers, hours, generator=generator) - 0.8)
        level = F.avg_pool1d(rain.unsqueeze(1), 25, 1, 12, count_include_pad=False).squeeze(1)
        series = torch.stack([rain, level], 2)
        self.windows = series.unfold(1, past + ahead, 1).flatten(0, 1).transpose(1, 2)
        self.past = past

    def __len__(self):
        return len(self.windows)

    def __getitems__(self, indices):
        return self.windows[torch.tensor(indices)]


class Forecaster(pl.LightningModule):
    def __init__(self, width, past, ahead, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.recur = nn.GRU(2, width, num_layers=2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, ahead))

    def forward(self, past):
        states, _ = self.recur(past)
        return self.head(states[:, -1])

    def shared(self, windows):
        past, ahead = windows.split([self.hparams.past, self.hparams.ahead], 1)
        return F.smooth_l1_loss(self(past), ahead[..., 1])

    def training_step(self, windows, index):
        loss = self.shared(windows)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, windows, index):
        self.log("held_out", self.shared(windows))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)


def main():
    pl.seed_everything(2, verbose=False)
    past, ahead, batch = 72, 12, draw("batch", 56, 64)
    train, held_out = Rivers(40, 600, past, ahead, 1), Rivers(4, 300, past, ahead, 2)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        limit_train_batches=250,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Forecaster(draw("width", 88, 96), past, ahead),
        DataLoader(train, batch, shuffle=True, drop_last=True, collate_fn=lambda windows: windows),
        DataLoader(held_out, 4 * batch, collate_fn=lambda windows: windows),
    )


if __name__ == "__main__":
    main()
