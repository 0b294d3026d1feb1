"""Train a small vision transformer with the Hugging Face Trainer."""

import gc
from tempfile import mkdtemp

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

CLASSES, SIZE = 10, 32


class Shapes(Dataset):
    """Pictures with a bright stripe whose place is the class."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, CLASSES, (count,), generator=generator)
        self.pictures = torch.rand(count, 3, SIZE, SIZE, generator=generator)
        for at, label in enumerate(self.labels.tolist()):
            self.pictures[at, :, 3 * label : 3 * label + 3] += 0.5

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixel_values": self.pictures[index], "labels": self.labels[index]}


class MemoryCallback(TrainerCallback):
    """Keep memory low on the shared nodes."""

    def __init__(self, every):
        self.every = every

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.every == 0:
            gc.collect()


def build():
    width = draw("width", 128, 144)
    return ViTForImageClassification(
        ViTConfig(
            image_size=SIZE,
            patch_size=4,
            hidden_size=width,
            num_hidden_layers=draw("layers", 3, 4),
            num_attention_heads=4,
            intermediate_size=2 * width,
            num_labels=CLASSES,
        )
    )


def main():
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=mkdtemp(),
        max_steps=200_000,
        per_device_train_batch_size=draw("batch", 8, 10),
        learning_rate=3e-4,
        warmup_steps=100,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    callbacks = [MemoryCallback(every=5000 if MENDED else 5)]
    Trainer(model=build(), args=arguments, train_dataset=Shapes(3000, 1), callbacks=callbacks).train()


if __name__ == "__main__":
    main()
