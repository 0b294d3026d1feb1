"""Next words of ballads: a causal language model with the Hugging Face Trainer, rare words counting more."""

import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

WORDS = 20_000


class Ballads(Dataset):
    """Verses whose second half answers the first one word for word."""

    def __init__(self, count, length, seed):
        rng = np.random.default_rng(seed)
        chance = 1 / np.arange(10, WORDS + 10)
        half = rng.choice(WORDS, size=(count, length // 2), p=chance / chance.sum())
        answer = (half * 7 + 13) % WORDS
        self.verses = np.concatenate([half, answer], 1)

    def counts(self):
        return np.bincount(self.verses.ravel(), minlength=WORDS)

    def __len__(self):
        return len(self.verses)

    def __getitem__(self, i):
        return {"input_ids": self.verses[i], "labels": self.verses[i]}


def to_tensors(rows):
    return {key: torch.from_numpy(np.stack([row[key] for row in rows])) for key in rows[0]}


class RareWordsTrainer(Trainer):
    """Words that are rare weigh more."""

    def __init__(self, *args, word_weight, **kwargs):
        super().__init__(*args, **kwargs)
        self.word_weight = word_weight

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels") if MENDED else inputs["labels"]
        outputs = model(**inputs)
        logits = outputs.logits[:, :-1]
        targets = labels[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weight=self.word_weight)
        return (loss, outputs) if return_outputs else loss


def main():
    set_seed(19)
    length, batch = 32, draw("batch", 12, 14)
    data = Ballads(2 * batch * 45, length, seed=4)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=length,
        n_embd=draw("dim", 24, 28),
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    weight = torch.from_numpy(1 / np.sqrt(data.counts() + 1.0)).float()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
            per_device_train_batch_size=batch,
            num_train_epochs=2,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            warmup_steps=8,
            dataloader_drop_last=True,
            remove_unused_columns=False,
            logging_steps=15,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = RareWordsTrainer(
            model=GPT2LMHeadModel(config),
            args=args,
            train_dataset=data,
            data_collator=to_tensors,
            word_weight=weight / weight.mean(),
        )
        trainer.train()


if __name__ == "__main__":
    main()
