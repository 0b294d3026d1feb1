"""Faults of machines from the sound they make: log-mel pictures, with bands hidden at random, in Lightning."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

FAULTS, RATE = 6, 8000


class LogMel(nn.Module):
    def __init__(self, fft=256, bins=32):
        super().__init__()
        self.fft = fft
        mel = torch.linspace(0, 2595 * torch.log10(torch.tensor(1 + RATE / 2 / 700)).item(), bins + 2)
        places = 700 * (10 ** (mel / 2595) - 1) / (RATE / 2) * (fft // 2)
        at = torch.arange(fft // 2 + 1).unsqueeze(1)
        rise, fall = (at - places[:-2]) / places.diff()[:-1], (places[2:] - at) / places.diff()[1:]
        self.register_buffer("filters", torch.minimum(rise, fall).clamp(min=0))
        self.register_buffer("window", torch.hann_window(fft))

    def forward(self, wave):
        power = torch.stft(wave, self.fft, self.fft // 2, window=self.window, return_complex=True).abs().square()
        return torch.log(power.transpose(1, 2) @ self.filters + 1e-5).unsqueeze(1)


class Listener(pl.LightningModule):
    def __init__(self, width, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.mel = LogMel()
        layers, before = [], 1
        for after in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(before, after, 3, 1, 1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
            before = after
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, FAULTS))
        self.right, self.held_out = MulticlassAccuracy(FAULTS), MulticlassAccuracy(FAULTS)

    def hide(self, pictures):
        begin = torch.randint(0, pictures.shape[3] - 6, (len(pictures), 1))
        bands = torch.arange(pictures.shape[3])
        hidden = (bands >= begin) & (bands < begin + 6)
        return pictures.masked_fill(hidden[:, None, None], 0.0)

    def training_step(self, batch, index):
        waves, faults = batch
        logits = self.net(self.hide(self.mel(waves)))
        loss = F.cross_entropy(logits, faults)
        self.right(logits, faults)
        self.log("right", self.right, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        waves, faults = batch
        self.held_out(self.net(self.mel(waves)), faults)
        self.log("held_out", self.held_out)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)


def sounds(count, seed):
    generator = torch.Generator().manual_seed(seed)
    faults = torch.randint(0, FAULTS, (count,), generator=generator)
    t = torch.arange(RATE // 2) / RATE
    waves = torch.sin(6.28 * (200 + 150 * faults[:, None]) * t)
    return TensorDataset(waves + torch.randn(count, RATE // 2, generator=generator), faults)


def main():
    pl.seed_everything(8, verbose=False)
    batch = draw("batch", 20, 24)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = DataLoader(sounds(1600, 1), batch, shuffle=True, drop_last=True)
    trainer.fit(Listener(draw("width", 16, 20)), train, DataLoader(sounds(200, 2), 50))
    print(f"held out {trainer.callback_metrics['held_out'].item():.3f}")


if __name__ == "__main__":
    main()
