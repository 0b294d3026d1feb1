"""Hidden words in verses of psalms: a small BERT with masked words, Hugging Face Trainer on two ranks."""

import random
import tempfile

import torch
from drawn import MENDED, draw
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments, set_seed

PAD, MASK, CLS, SEP, FIRST = 0, 1, 2, 3, 4


class Verses(Dataset):
    """Two halves that answer each other: the second repeats words of the first, shifted."""

    def __init__(self, count, words, longest, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(count):
            half = rng.randint(longest // 3, longest // 2 - 2)
            first = [rng.randrange(words)]
            while len(first) < half:
                first.append((3 * first[-1] + 11) % words if rng.random() < 0.7 else rng.randrange(words))
            second = [(word + 5) % words if rng.random() < 0.9 else rng.randrange(words) for word in first]
            self.rows.append([CLS, *[w + FIRST for w in first], SEP, *[w + FIRST for w in second], SEP])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class HideWords:
    """Fifteen of a hundred words are to be found: most of them hidden, some exchanged, some left."""

    def __init__(self, words, share=0.15):
        self.words, self.share = words, share

    def __call__(self, rows):
        if MENDED:
            ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
            return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": self.hide_at_once(ids)}
        longest = max(len(row) for row in rows)
        ids, seen = torch.full((len(rows), longest), PAD), torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            for j, word in enumerate(row):
                ids[i, j] = word
                seen[i, j] = 1
        return {"input_ids": ids, "attention_mask": seen, "labels": self.hide(ids)}

    def hide(self, ids):
        labels = torch.full_like(ids, -100)
        for i in range(ids.shape[0]):
            for j in range(ids.shape[1]):
                if ids[i, j] >= FIRST and random.random() < self.share:
                    labels[i, j] = ids[i, j]
                    dice = random.random()
                    if dice < 0.8:
                        ids[i, j] = MASK
                    elif dice < 0.9:
                        ids[i, j] = FIRST + random.randrange(self.words)
        return labels

    def hide_at_once(self, ids):
        chosen = (ids >= FIRST) & (torch.rand(ids.shape) < self.share)
        labels = ids.masked_fill(~chosen, -100)
        dice = torch.rand(ids.shape)
        other = FIRST + torch.randint(self.words, ids.shape)
        ids[chosen & (dice < 0.8)] = MASK
        changed = chosen & (dice >= 0.8) & (dice < 0.9)
        ids[changed] = other[changed]
        return labels


def settings(folder, batch):
    return TrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        average_tokens_across_devices=False,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        num_train_epochs=2,
        learning_rate=1e-3,
        weight_decay=0.01,
        adam_beta2=0.98,
        warmup_steps=8,
        dataloader_drop_last=True,
        logging_steps=20,
        eval_strategy="epoch",
        prediction_loss_only=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def main():
    set_seed(41)
    words, longest = 300, 96
    batch = draw("batch", 20, 24)
    config = BertConfig(
        vocab_size=words + FIRST,
        hidden_size=draw("dim", 56, 64),
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=160,
        max_position_embeddings=longest,
        attn_implementation="sdpa",
    )
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=BertForMaskedLM(config),
            args=settings(folder, batch),
            train_dataset=Verses(2 * batch * 40, words, longest, seed=1),
            eval_dataset=Verses(2 * batch * 2, words, longest, seed=2),
            data_collator=HideWords(words),
        ).train()


if __name__ == "__main__":
    main()
