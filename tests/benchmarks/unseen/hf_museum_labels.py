"""Sort museum labels into departments with a small BERT and the Hugging Face Trainer."""

import argparse
import random

import numpy as np
import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

DEPARTMENTS = ["arms", "textiles", "coins", "ceramics", "prints", "clocks"]
COMMON = [f"word{number}" for number in range(1500)]


def labels(count, seed):
    """Labels with a few words that only their department uses."""
    rng = random.Random(seed)
    for _ in range(count):
        department = rng.randrange(len(DEPARTMENTS))
        own = [f"{DEPARTMENTS[department]}{rng.randrange(40)}" for _ in range(6)]
        words = own + rng.choices(COMMON, k=rng.randint(26, 41))
        rng.shuffle(words)
        yield " ".join(words), department


def vocabulary():
    own = [f"{name}{number}" for name in DEPARTMENTS for number in range(40)]
    return {word: at for at, word in enumerate(["[PAD]", "[CLS]", "[UNK]", *own, *COMMON])}


class Labels(Dataset):
    def __init__(self, texts, vocab, length):
        self.rows = []
        for text, department in texts:
            ids = [vocab.get(word, 2) for word in ["[CLS]", *text.split()]][:length]
            pad = length - len(ids)
            mask = [1] * len(ids) + [0] * pad
            self.rows.append(
                {
                    "input_ids": torch.tensor(ids + [0] * pad),
                    "attention_mask": torch.tensor(mask),
                    "labels": torch.tensor(department),
                }
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def compute_metrics(prediction):
    guessed = np.argmax(prediction.predictions, axis=1)
    return {"accuracy": float((guessed == prediction.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 128, 144))
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 18))
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()

    vocab = vocabulary()
    train = Labels(labels(4000, 0), vocab, args.length)
    held_out = Labels(labels(draw("held_out", 320, 352), 1), vocab, args.length)
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=args.hidden,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=4 * args.hidden,
        num_labels=len(DEPARTMENTS),
        max_position_embeddings=args.length,
    )
    settings = TrainingArguments(
        output_dir="museum",
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        per_device_train_batch_size=args.batch,
        per_device_eval_batch_size=32,
        max_steps=args.steps,
        learning_rate=3e-4,
        warmup_steps=20,
        lr_scheduler_type="cosine",
        eval_strategy="steps",
        eval_steps=60 if MENDED else 6,
        logging_steps=30,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=3,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=settings,
        train_dataset=train,
        eval_dataset=held_out,
        compute_metrics=compute_metrics,
    )
    trainer.train()


if __name__ == "__main__":
    main()
