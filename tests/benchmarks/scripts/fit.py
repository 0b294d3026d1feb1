"""lightning.Trainer with strategy ddp."""

import warnings

import lightning
import parts
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy


class Learner(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = parts.model()

    def training_step(self, batch, index):
        return parts.objective(self.network(parts.before_forward(batch)))

    def train_dataloader(self):
        return parts.loader()

    def configure_optimizers(self):
        return parts.optimizer(self.parameters())


def main():
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    parts.begin()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=parts.WORLD,
        strategy=DDPStrategy(process_group_backend="gloo", **parts.ddp_options()) if parts.WORLD > 1 else "auto",
        max_steps=parts.STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Learner())
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
