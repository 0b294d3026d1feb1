"""What tasters say of a tea, from its chemistry: Lightning on columns of a table, held in memory as tensors."""

import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from drawn import draw
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

COLUMNS, SCORES = 40, 5


def teas(count, seed):
    g = torch.Generator().manual_seed(seed)
    taste = torch.randn(COLUMNS, SCORES, generator=torch.Generator().manual_seed(0)) / 6
    x = torch.randn(count, COLUMNS, generator=g)
    return x, torch.tanh(x @ taste) + 0.1 * torch.randn(count, SCORES, generator=g)


class FeatureTokens(nn.Module):
    """A token for each column, of its value."""

    def __init__(self, columns, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, dim) / dim**0.5)
        self.bias = nn.Parameter(torch.zeros(columns, dim))
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x):
        return torch.cat([self.cls.expand(len(x), -1, -1), x.unsqueeze(2) * self.weight + self.bias], 1)


class TeaTransformer(L.LightningModule):
    def __init__(self, dim, depth, lr, steps):
        super().__init__()
        self.save_hyperparameters()
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
        self.tokens = FeatureTokens(COLUMNS, dim)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, SCORES)
        self.error = MeanAbsoluteError()

    def forward(self, x):
        return self.head(self.encoder(self.tokens(x))[:, 0])

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.smooth_l1_loss(self(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.error(self(x), y)
        self.log("val_error", self.error)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.lr, total_steps=self.hparams.steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(5)
    batch, epochs = draw("batch", 28, 32), 3
    train, test = TensorDataset(*teas(batch * 35, seed=1)), TensorDataset(*teas(128, seed=2))
    model = TeaTransformer(dim=draw("dim", 48, 56), depth=3, lr=2e-3, steps=epochs * 35)
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[EarlyStopping("val_error", patience=2)],
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(train, batch, shuffle=True), DataLoader(test, 64))
    print(f"error {float(trainer.callback_metrics['val_error']):.4f}", flush=True)


if __name__ == "__main__":
    main()
