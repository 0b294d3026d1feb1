"""lightning.Trainer with strategy ddp. Alone (with --devices 2 it starts the second rank itself), or by torchrun."""

import argparse
import warnings

import ending
import lightning
import torch
import torch.distributed as dist
import weights
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, index):
        features, labels = batch
        return nn.functional.cross_entropy(self.network(features), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def on_train_batch_start(self, batch, index):
        ending.at(self.global_step + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()

    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    torch.set_num_threads(1)
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(1024, 16), torch.randint(0, 4, (1024,)))
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp",
        max_steps=args.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True))

    if trainer.global_rank == 0:
        weights.show(model.parameters())
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
