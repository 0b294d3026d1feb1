"""Names, places and dates on notes of a herbarium: token classification with the Hugging Face Trainer."""

import random
import tempfile

import torch
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments, set_seed

TAGS = ["other", "plant", "place", "date", "collector"]
RANGES = {"other": (3, 300), "plant": (300, 600), "place": (600, 800), "date": (800, 900), "collector": (900, 1000)}
PATTERN = ["plant", "plant", "other", "place", "other", "date", "collector", "collector"]


class Notes(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(count):
            tags = []
            for tag in PATTERN:
                tags += ["other"] * rng.randrange(4) + [tag]
            words = [2] + [rng.randrange(*RANGES[tag]) if rng.random() > 0.05 else 1 for tag in tags]
            self.items.append((words, [-100] + [TAGS.index(tag) for tag in tags]))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        words, labels = self.items[i]
        return {"input_ids": words, "labels": labels}


def collate(rows):
    """To the longest of the batch; what is added does not count."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    for at, row in enumerate(rows):
        ids[at, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        labels[at, : len(row["labels"])] = torch.tensor(row["labels"])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


class WeightedTrainer(Trainer):
    """Most words are of no kind: they weigh less."""

    def __init__(self, *args, tag_weight, **kwargs):
        super().__init__(*args, **kwargs)
        self.tag_weight = tag_weight

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), weight=self.tag_weight)
        if num_items_in_batch is not None and model.training:  # the Trainer leaves dividing to what counts items
            loss = loss / self.args.gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss


def main():
    set_seed(29)
    batch = draw("batch", 10, 12)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=draw("hidden", 96, 112),
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=320,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=len(TAGS),
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=4 * batch,
            gradient_accumulation_steps=2,
            num_train_epochs=2,
            learning_rate=1e-3,
            warmup_steps=8,
            weight_decay=0.01,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=20,
            dataloader_drop_last=True,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = WeightedTrainer(
            model=BertForTokenClassification(config),
            args=args,
            train_dataset=Notes(2 * 2 * batch * 45, seed=1),
            eval_dataset=Notes(160, seed=2),
            data_collator=collate,
            tag_weight=torch.tensor([0.3, 1.0, 1.0, 1.0, 1.0]),
        )
        trainer.train()


if __name__ == "__main__":
    main()
