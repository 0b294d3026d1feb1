"""Who holds a speech at a wedding, from its words: a small BERT on word pieces, Hugging Face Trainer."""

import random
import re
import tempfile
import unicodedata
from collections import Counter

import numpy as np
import torch
from drawn import MENDED, draw
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

SPEAKERS = ["bride's father", "groom's mother", "best man", "maid of honour", "grandmother", "colleague"]
PARTS = ["mar", "li", "dan", "té", "ro", "sing", "wed", "hap", "ly", "lo", "ver", "joy", "glas", "kiss", "ness", "ka"]


def speeches(count, seed):
    """Sentences of invented words; each speaker has words that he likes."""
    words_of = random.Random(2)
    words = ["".join(words_of.choices(PARTS, k=words_of.randint(2, 4))) for _ in range(900)]
    liked = [words_of.sample(words, 40) for _ in SPEAKERS]
    rng = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        speaker, sentences = rng.randrange(len(SPEAKERS)), []
        for _ in range(rng.randint(12, 18)):
            chosen = [rng.choice(liked[speaker] if rng.random() < 0.12 else words) for _ in range(rng.randint(5, 11))]
            sentences.append(" ".join(chosen).capitalize() + rng.choice([".", "!", ", cheers!"]))
        texts.append(" ".join(sentences))
        labels.append(speaker)
    return texts, labels


class WordPieces:
    """Lower case without accents, split at marks, then the longest known piece first."""

    SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")

    def __init__(self, texts, size, longest=5):
        pieces = Counter()
        for text in texts:
            for word in self.words(text):
                for start in range(len(word)):
                    for end in range(start + 1, min(len(word), start + longest) + 1):
                        pieces[("##" if start else "") + word[start:end]] += 1 + (end - start)
        letters = {("##" if n else "") + c for piece in pieces for n, c in enumerate(piece.strip("#"))}
        letters |= {"##" + c.strip("#") for c in letters}
        common = [piece for piece, _ in pieces.most_common(size)]
        self.ids = {piece: at for at, piece in enumerate(dict.fromkeys([*self.SPECIAL, *sorted(letters), *common]))}

    @staticmethod
    def words(text):
        plain = unicodedata.normalize("NFD", text.lower())
        plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
        return re.findall(r"\w+|[^\w\s]", plain)

    def pieces(self, word):
        found, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start and (piece := ("##" if start else "") + word[start:end]) not in self.ids:
                end -= 1
            if end == start:
                return ["[UNK]"]
            found.append(piece)
            start = end
        return found

    def encode(self, text, most):
        pieces = [piece for word in self.words(text) for piece in self.pieces(word)]
        return [self.ids[piece] for piece in ["[CLS]", *pieces[: most - 2], "[SEP]"]]


class Speeches(Dataset):
    def __init__(self, texts, labels, encode):
        self.rows, self.labels, self.encode = texts, labels, encode
        if MENDED:
            self.rows = [encode(text) for text in texts]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids = self.rows[i] if MENDED else self.encode(self.rows[i])
        return {"input_ids": ids, "labels": self.labels[i]}


def collate(rows):
    ids = pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([r["labels"] for r in rows])}


def accuracy(prediction):
    return {"right": float(np.mean(prediction.predictions.argmax(1) == prediction.label_ids))}


def main():
    set_seed(19)
    batch, most = draw("batch", 16, 18), 96
    texts, labels = speeches(50 * batch + 80, seed=1)
    pieces = WordPieces(texts, size=700)
    held = Speeches(texts[-80:], labels[-80:], lambda text: pieces.encode(text, most))
    train = Speeches(texts[:-80], labels[:-80], lambda text: pieces.encode(text, most))
    config = BertConfig(
        vocab_size=len(pieces.ids),
        hidden_size=draw("dim", 64, 72),
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=most,
        num_labels=len(SPEAKERS),
        pad_token_id=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=20,
            num_train_epochs=3,
            learning_rate=1e-3,
            warmup_steps=10,
            weight_decay=0.01,
            dataloader_drop_last=True,
            logging_steps=25,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(
            model=BertForSequenceClassification(config),
            args=args,
            train_dataset=train,
            eval_dataset=held,
            data_collator=collate,
            compute_metrics=accuracy,
        ).train()


if __name__ == "__main__":
    main()
