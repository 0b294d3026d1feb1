"""Maker, age and material in lots of an auction catalogue: token classification, Hugging Face Trainer."""

import random
import tempfile

import torch
from drawn import draw
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments, set_seed

LABELS = ["O", "MAKER", "AGE", "MATERIAL"]
PAD, FIRST = 0, 1


class Lots(Dataset):
    """Words of a description as numbers, encoded before training; a kind of word has a range of numbers."""

    def __init__(self, count, words, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(count):
            ids, labels = [], []
            while len(ids) < rng.randint(16, 56):
                kind = rng.choices(range(4), (6, 1, 1, 1))[0]
                for _ in range(rng.randint(1, 3)):
                    ids.append(FIRST + kind * words // 4 + rng.randrange(words // 4))
                    labels.append(kind)
                if kind and rng.random() < 0.2:  # a word of a maker that is no maker here
                    ids.append(FIRST + words // 4 + rng.randrange(9))
                    labels.append(0)
            self.rows.append((torch.tensor(ids), torch.tensor(labels)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, labels = self.rows[i]
        return {"input_ids": ids, "labels": labels}


def collate(rows):
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=PAD)
    labels = pad_sequence([row["labels"] for row in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def best_label(scores, labels):
    """Only the label is kept of the scores of a word."""
    return scores.argmax(-1)


def figures(prediction):
    known = prediction.label_ids != -100
    found, true = prediction.predictions[known], prediction.label_ids[known]
    hit = ((found == true) & (true > 0)).sum()
    return {"f1": float(2 * hit / max((found > 0).sum() + (true > 0).sum(), 1))}


def main():
    set_seed(53)
    words, batch = 800, draw("batch", 20, 24)
    config = BertConfig(
        vocab_size=words + FIRST,
        hidden_size=draw("dim", 96, 112, 128),
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=320,
        max_position_embeddings=80,
        num_labels=len(LABELS),
        pad_token_id=PAD,
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=2 * batch,
            num_train_epochs=2,
            learning_rate=1e-3,
            lr_scheduler_type="linear",
            warmup_steps=10,
            weight_decay=0.01,
            dataloader_drop_last=True,
            logging_steps=30,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=BertForTokenClassification(config),
            args=args,
            train_dataset=Lots(60 * batch, words, seed=1),
            eval_dataset=Lots(6 * batch, words, seed=2),
            data_collator=collate,
            compute_metrics=figures,
            preprocess_logits_for_metrics=best_label,
        )
        trainer.train()


if __name__ == "__main__":
    main()
