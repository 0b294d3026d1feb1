"""Nothing to gain: Lightning with a recurrent network, on data in memory."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HIDDEN = 192  # drawn: 128, 192, 256


class Forecaster(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 1)

    def training_step(self, batch, batch_idx):
        series, target = batch
        return nn.functional.mse_loss(self.head(self.lstm(series)[0][:, -1]), target)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    torch.manual_seed(8)
    loader = DataLoader(TensorDataset(torch.randn(8192, 24, 16), torch.randn(8192, 1)), batch_size=64)
    trainer = lightning.Trainer(
        max_epochs=1000,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Forecaster(), loader)
