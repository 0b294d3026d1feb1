"""Coughs and other sounds, told apart from their spectrogram, with Lightning."""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import DataLoader, Dataset

KINDS, RATE = 6, 4000


class Sounds(Dataset):
    def __init__(self, count, seconds, seed):
        generator = torch.Generator().manual_seed(seed)
        time = torch.arange(int(seconds * RATE)) / RATE
        self.kinds = torch.randint(0, KINDS, (count,), generator=generator)
        pitch = 150 * (1 + self.kinds.unsqueeze(1)) * (1 + 0.1 * torch.rand(count, 1, generator=generator))
        fade = torch.exp(-time * (1 + 3 * torch.rand(count, 1, generator=generator)))
        self.waves = fade * torch.sin(2 * torch.pi * pitch * time)

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        return self.waves[index], self.kinds[index]


class Spectrum(nn.Module):
    """The wave moved and with noise while in training, as loudness of tones."""

    def __init__(self, length, hop):
        super().__init__()
        self.length, self.hop = length, hop
        self.register_buffer("window", torch.hann_window(length))

    def forward(self, waves):
        if self.training:
            waves = waves.roll(int(torch.randint(0, waves.shape[1], ())), 1)
            waves = waves + 0.3 * torch.randn_like(waves)
        found = torch.stft(waves, self.length, self.hop, window=self.window, return_complex=True)
        return found.abs().clamp(min=1e-4).log().unsqueeze(1)


class Listener(L.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.save_hyperparameters()
        layers, enter = [Spectrum(256, 80)], 1
        for leave in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(enter, leave, 3, 1, 1), nn.BatchNorm2d(leave), nn.ReLU(), nn.MaxPool2d(2)]
            enter = leave
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(enter, KINDS))

    def training_step(self, batch, batch_idx):
        waves, kinds = batch
        loss = F.cross_entropy(self.net(waves), kinds, label_smoothing=0.05)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        waves, kinds = batch
        self.log("right", (self.net(waves).argmax(1) == kinds).float().mean(), batch_size=len(kinds))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.hparams.lr, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(0)
    seconds, batch = draw("seconds", 1.2, 1.4), draw("batch", 12, 14)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = DataLoader(Sounds(3000, seconds, 1), batch, shuffle=True, drop_last=True)
    trainer.fit(Listener(width=12, lr=2e-3), train, DataLoader(Sounds(300, seconds, 2), 50))
    print({name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
