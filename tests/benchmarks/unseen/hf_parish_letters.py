"""Who wrote a letter found in a parish chest: sequence classification with the Hugging Face Trainer, two processes."""

import random
import re
import tempfile
import unicodedata

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments, set_seed

WRITERS = ["vicar", "sexton", "widow", "miller", "bishop's clerk", "schoolmaster"]
PAGE = (
    "parish church roof bell tithe sheep orchard winter bread harvest psalm candle poor box grave wall lead "
    "repair shilling penny owed gratefully received humble servant brother sister sick fever doctor prayer"
)
STOCK = PAGE.split()
PARTS = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[^\w\s]")


def letter(rng, writer, words):
    """A page as it was typed from the original, with page numbers, dates and brackets of the editor."""
    favourite = STOCK[writer * 5 : writer * 5 + 8]
    text = []
    for at in range(words):
        word = rng.choice(favourite if rng.random() < 0.4 else STOCK)
        text.append(word.capitalize() if rng.random() < 0.2 else word)
        if at % 11 == 10:
            text.append(
                rng.choice(["[sic]", "(illegible)", "&c.", f"{rng.randint(1, 28)}th May 17{rng.randint(10, 99)}"])
            )
        if at % 17 == 16:
            text.append(f"<p. {rng.randint(1, 90)}>")
    return " ".join(text)


def clean(text):
    text = unicodedata.normalize("NFKC", text)
    text = re.sub(r"<p\. \d+>", " ", text)
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)", " ", text)
    text = re.sub(r"(\d+)(?:st|nd|rd|th)\b", r"\1", text)
    text = re.sub(r"&c\.", " and so on ", text)
    return re.sub(r"\s+", " ", text).strip().lower()


class Letters(Dataset):
    def __init__(self, count, words, longest, seed):
        rng = random.Random(seed)
        self.writer = [rng.randrange(len(WRITERS)) for _ in range(count)]
        self.text = [letter(rng, writer, words) for writer in self.writer]
        self.longest = longest
        known = sorted({part for text in self.text[:400] for part in PARTS.findall(clean(text))})
        self.known = {part: at + 2 for at, part in enumerate(known)}
        self.ready = [self.encode(text) for text in self.text] if MENDED else None

    def encode(self, text):
        parts = PARTS.findall(clean(text))
        return torch.tensor([self.known.get(part, 1) for part in parts[-self.longest :]])

    def __len__(self):
        return len(self.text)

    def __getitem__(self, i):
        ids = self.ready[i] if self.ready else self.encode(self.text[i])
        return {"input_ids": ids, "labels": self.writer[i]}


def pad(rows):
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([r["labels"] for r in rows])}


def main():
    set_seed(23)
    batch, longest = 12, 40
    words = draw("words", 450, 500, 550)
    train = Letters(2 * batch * 35, words, longest, seed=1)
    test = Letters(2 * batch * 3, words, longest, seed=2)
    test.known = train.known
    test.ready = [test.encode(text) for text in test.text] if MENDED else None
    config = DistilBertConfig(
        vocab_size=len(train.known) + 2,
        max_position_embeddings=longest,
        dim=draw("dim", 96, 112),
        hidden_dim=256,
        n_layers=2,
        n_heads=4,
        num_labels=len(WRITERS),
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=batch,
            num_train_epochs=2,
            learning_rate=1e-3,
            warmup_steps=10,
            weight_decay=0.01,
            dataloader_drop_last=True,
            logging_steps=20,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=DistilBertForSequenceClassification(config),
            args=args,
            train_dataset=train,
            eval_dataset=test,
            data_collator=pad,
        )
        trainer.train()


if __name__ == "__main__":
    main()
