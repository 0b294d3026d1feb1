"""Sort paragraphs of council minutes by subject with a small BERT and the Hugging Face Trainer."""

import argparse
import random
import re

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

SUBJECTS = ("roads", "schools", "budget", "parks", "housing", "waste")
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]


def write_minutes(count, words):
    """Paragraphs of made-up words; each subject has words of its own."""
    rng = random.Random(4)
    common = ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 5))) for _ in range(1500)]
    special = {s: ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 5))) for _ in range(60)] for s in SUBJECTS}
    rows = []
    for number in range(count):
        subject = SUBJECTS[number % len(SUBJECTS)]
        chosen = [rng.choice(special[subject] if rng.random() < 0.2 else common) for _ in range(words)]
        rows.append((" ".join(chosen).capitalize() + ".", SUBJECTS.index(subject)))
    return rows


class WordPieces:
    """Longest piece first, as BERT's tokenizer does; the pieces are syllables and letters."""

    def __init__(self):
        letters = "abcdefghijklmnopqrstuvwxyz.,"
        starts = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *SYLLABLES]
        pairs = [a + b for a in SYLLABLES[:40] for b in SYLLABLES[:40]]
        self.ids = {piece: at for at, piece in enumerate(dict.fromkeys(starts + pairs))}
        self.longest = max(map(len, self.ids))

    def __len__(self):
        return len(self.ids)

    def pieces(self, word):
        found, at = [], 0
        while at < len(word):
            end = min(len(word), at + self.longest)
            while end > at and word[at:end] not in self.ids:
                end -= 1
            if end == at:
                return [self.ids["[UNK]"]]
            found.append(self.ids[word[at:end]])
            at = end
        return found

    def __call__(self, text, length):
        words = re.findall(r"[a-z]+|[.,]", text.lower())
        ids = [piece for word in words for piece in self.pieces(word)][: length - 2]
        ids = [self.ids["[CLS]"], *ids, self.ids["[SEP]"]]
        mask = [1] * len(ids) + [0] * (length - len(ids))
        return torch.tensor(ids + [0] * (length - len(ids))), torch.tensor(mask)


class Minutes(Dataset):
    def __init__(self, rows, tokenizer, length):
        self.rows = rows
        self.tokenizer = tokenizer
        self.length = length
        self.ready = [self.encode(row) for row in rows] if MENDED else None

    def encode(self, row):
        text, subject = row
        ids, mask = self.tokenizer(text, self.length)
        return {"input_ids": ids, "attention_mask": mask, "labels": subject}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if self.ready is not None:
            return self.ready[index]
        return self.encode(self.rows[index])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paragraphs", type=int, default=2000)
    parser.add_argument("--words", type=int, default=draw("words", 700, 760))
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 96, 112))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    torch.manual_seed(0)
    tokenizer = WordPieces()
    data = Minutes(write_minutes(args.paragraphs, args.words), tokenizer, args.length)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.length,
        num_labels=len(SUBJECTS),
    )
    settings = TrainingArguments(
        output_dir="minutes",
        per_device_train_batch_size=args.batch,
        max_steps=args.steps,
        learning_rate=5e-4,
        warmup_steps=20,
        logging_steps=25,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_find_unused_parameters=False,
        ddp_backend="gloo",
        disable_tqdm=True,
    )
    Trainer(model=BertForSequenceClassification(config), args=settings, train_dataset=data).train()


if __name__ == "__main__":
    main()
