"""Lightning with a small convolutional network, on images that are augmented in the training process."""

import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHANNELS = 12  # drawn: 8, 12, 16
AUGMENT_S = 0.003  # drawn: 0.002, 0.003, 0.004


class Images(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(AUGMENT_S)
        return torch.full((3, 24, 24), (index % 31) / 31), index % 10


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, CHANNELS, 3),
            nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * CHANNELS, 10),
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


if __name__ == "__main__":
    torch.manual_seed(2)
    torch.set_num_threads(1)
    loader = DataLoader(Images(), batch_size=12)  # FAULT augments
    trainer = lightning.Trainer(
        max_epochs=50, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Classifier(), loader)
