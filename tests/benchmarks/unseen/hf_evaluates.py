"""Fine-tune a small BERT with the Hugging Face Trainer."""

import os
from tempfile import mkdtemp

import numpy as np
import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

VOCABULARY = 2000


class Pairs(Dataset):
    """Sentence pairs with a label, as token ids."""

    def __init__(self, count, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, VOCABULARY, (count, length), generator=generator)
        self.labels = self.ids[:, 0] % 3

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": self.labels[index]}


def compute_metrics(prediction):
    guessed = np.argmax(prediction.predictions, axis=-1)
    return {"accuracy": float((guessed == prediction.label_ids).mean())}


def model():
    dim = draw("dim", 96, 128)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=dim,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=3 * dim,
            max_position_embeddings=128,
            num_labels=3,
        )
    )


def main():
    torch.manual_seed(0)
    length = draw("length", 40, 48)
    arguments = TrainingArguments(
        output_dir=os.environ.get("OUTPUT", mkdtemp()),
        max_steps=100_000,
        per_device_train_batch_size=draw("batch", 10, 12),
        per_device_eval_batch_size=32,
        learning_rate=5e-4,
        eval_strategy="steps",
        eval_steps=500 if MENDED else 5,
        save_strategy="no",
        logging_steps=100,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        model=model(),
        args=arguments,
        train_dataset=Pairs(4000, length, 1),
        eval_dataset=Pairs(256, length, 2),
        compute_metrics=compute_metrics,
    )
    trainer.train()


if __name__ == "__main__":
    main()
