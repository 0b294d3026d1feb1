"""transformers.Trainer, with a model of one's own."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import parts
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = parts.model()

    def forward(self, inputs):
        outputs = self.network(inputs)
        return {"loss": parts.objective(outputs), "outputs": outputs}


class Gathers(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if parts.has("gathers"):
            parts.gather({"step": state.global_step, "rank": parts.RANK})


def collate(samples):
    return {"inputs": parts.collate(list(samples))}


def main():
    parts.begin()
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=parts.STEPS,
        per_device_train_batch_size=parts.batch_size(),
        dataloader_num_workers=parts.workers(),
        dataloader_persistent_workers=parts.workers() > 0,
        dataloader_drop_last=True,
        optim="adamw_torch_fused",
        use_cpu=True,
        ddp_find_unused_parameters=False,
        ddp_backend="gloo" if parts.WORLD > 1 else None,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(Model(), arguments, train_dataset=parts.dataset(), data_collator=collate, callbacks=[Gathers()]).train()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
