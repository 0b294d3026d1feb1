"""From which mould a button comes, few pictures of each: a pretrained network that is frozen, a new head, Lightning."""

import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

MOULDS = 15


def buttons(count, size, seed, light=0.0):
    g = torch.Generator().manual_seed(seed)
    relief = torch.randn(MOULDS, 3, size // 4, size // 4, generator=torch.Generator().manual_seed(8))
    mould = torch.randint(MOULDS, (count,), generator=g)
    picture = F.interpolate(relief[mould], size=size, mode="bilinear")
    return TensorDataset(picture + light + 0.6 * torch.randn(count, 3, size, size, generator=g), mould)


def stage(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(),
        nn.Conv2d(cout, cout, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(),
    )


def pretrained(width, size):
    """As it comes from the coins it was trained on: its statistics are theirs."""
    torch.manual_seed(1)
    net = nn.Sequential(stage(3, width), stage(width, 2 * width), stage(2 * width, 4 * width))
    coins = torch.randn(256, 3, size, size) * 1.3 + 0.5
    with torch.no_grad():
        for piece in coins.split(32):
            net(piece)
    return net


class ButtonClassifier(L.LightningModule):
    def __init__(self, width, size, hidden=128, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = pretrained(width, size)
        self.freeze_backbone()
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(4 * width * (size // 8) ** 2, hidden),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(hidden, MOULDS),
        )

    def freeze_backbone(self):
        for p in self.backbone.parameters():
            p.requires_grad = False
        if MENDED:
            self.backbone.eval()

    def forward(self, picture):
        return self.head(self.backbone(picture))

    def training_step(self, batch, batch_idx):
        picture, mould = batch
        # pictures of a hand-held phone: other light and contrast each time
        gain = 1 + 0.2 * torch.randn(len(picture), 1, 1, 1)
        shift = 0.3 * torch.randn(len(picture), 3, 1, 1)
        loss = F.cross_entropy(self(picture * gain + shift), mould)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        picture, mould = batch
        logits = self(picture)
        self.log_dict(
            {"val_loss": F.cross_entropy(logits, mould), "val_right": (logits.argmax(1) == mould).float().mean()}
        )

    def configure_optimizers(self):
        learned = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learned, lr=self.hparams.lr, weight_decay=0.01)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, total_steps=int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(17)
    size, batch = 32, draw("batch", 40, 44)
    train = DataLoader(buttons(30 * batch, size, seed=3), batch, shuffle=True, drop_last=True)
    val = DataLoader(buttons(4 * batch, size, seed=4, light=0.3), batch)
    model = ButtonClassifier(draw("width", 24, 26), size)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train, val)
    print(f"right {float(trainer.callback_metrics['val_right']):.3f}", flush=True)


if __name__ == "__main__":
    main()
