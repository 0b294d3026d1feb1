"""Fine-tune a small DistilBERT with the Hugging Face Trainer: padded by batch, grouped by length."""

import os
import random
from tempfile import mkdtemp

import torch
from drawn import draw
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

VOCABULARY = 3000


class Sentences(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(count):
            ids = [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(36, 48))]
            self.rows.append({"input_ids": ids, "labels": ids[0] % 4})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    """Pad to the longest of the batch."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for at, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[at, :length] = torch.tensor(row["input_ids"])
        mask[at, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["labels"] for row in rows])}


def model():
    dim = draw("dim", 128, 160)
    return DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=VOCABULARY,
            dim=dim,
            hidden_dim=3 * dim,
            n_layers=3,
            n_heads=4,
            max_position_embeddings=64,
            num_labels=4,
        )
    )


def main():
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=os.environ.get("OUTPUT", mkdtemp()),
        max_steps=100_000,
        per_device_train_batch_size=draw("batch", 12, 16),
        learning_rate=5e-4,
        warmup_steps=100,
        eval_strategy="steps",
        eval_steps=500,
        save_strategy="no",
        logging_steps=100,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        optim="adamw_torch_fused",
    )
    trainer = Trainer(
        model=model(),
        args=arguments,
        train_dataset=Sentences(8000, 1),
        eval_dataset=Sentences(200, 2),
        data_collator=collate,
    )
    trainer.train()


if __name__ == "__main__":
    main()
