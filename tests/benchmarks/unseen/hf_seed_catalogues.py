"""Find names, prices and counts in the text of seed catalogues: token classification with the HF Trainer, two ranks."""

import random
import tempfile

import numpy as np
import torch
from drawn import draw
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForTokenClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

TAGS = ["O", "B-NAME", "I-NAME", "B-PRICE", "B-COUNT"]
WORDS = 400


def write_entry(rng):
    """Word ids and tags; names are of one or two words from a range, prices and counts each from their own."""
    words, tags = [], []
    for _ in range(rng.randint(2, 6)):
        for _ in range(rng.randint(1, 5)):
            words.append(rng.randrange(10, 250))
            tags.append(0)
        words.append(rng.randrange(250, 350))
        tags.append(1)
        if rng.random() < 0.5:
            words.append(rng.randrange(250, 350))
            tags.append(2)
        words.append(rng.randrange(340, 375))
        tags.append(3)
        if rng.random() < 0.3:
            words.append(rng.randrange(370, WORDS))
            tags.append(4)
    return words, tags


class Catalogue(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.entries = [write_entry(rng) for _ in range(n)]

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, i):
        words, tags = self.entries[i]
        return {"input_ids": words, "labels": tags}


class PadToLongest:
    """To the longest of the batch; -100 where there is no word, so that the loss leaves it out."""

    def __call__(self, items):
        longest = max(len(item["input_ids"]) for item in items)
        ids = torch.zeros(len(items), longest, dtype=torch.long)
        labels = torch.full((len(items), longest), -100)
        mask = torch.zeros(len(items), longest, dtype=torch.long)
        for row, item in enumerate(items):
            n = len(item["input_ids"])
            ids[row, :n] = torch.tensor(item["input_ids"])
            labels[row, :n] = torch.tensor(item["labels"])
            mask[row, :n] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def compute_metrics(prediction):
    guess, truth = prediction.predictions, prediction.label_ids
    known = truth != -100
    named = known & (truth > 0)
    return {
        "right": float((guess == truth)[known].mean()),
        "found": float((guess == truth)[named].mean()),
        "share_tagged": float(np.mean(guess[known] > 0)),
    }


def main():
    set_seed(5)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=draw("hidden", 112, 128),
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=draw("inner", 384, 448),
        max_position_embeddings=64,
        num_labels=len(TAGS),
        id2label=dict(enumerate(TAGS)),
        label2id={tag: i for i, tag in enumerate(TAGS)},
    )
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            num_train_epochs=3,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=8e-4,
            lr_scheduler_type="linear",
            warmup_steps=15,
            logging_steps=25,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            ddp_find_unused_parameters=False,
            seed=5,
        )
        trainer = Trainer(
            model=BertForTokenClassification(config),
            args=args,
            data_collator=PadToLongest(),
            train_dataset=Catalogue(2 * 16 * 26, seed=1),
            eval_dataset=Catalogue(200, seed=2),
            compute_metrics=compute_metrics,
            preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        )
        trainer.train()


if __name__ == "__main__":
    main()
