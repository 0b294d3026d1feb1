"""A small GPT-2 that goes on with melodies, trained with the Trainer and checked for how often it hits the note."""

import numpy as np
import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

EVENTS = draw("events", 3600, 4000)


class Melodies(Dataset):
    """Pitch, length and loudness of a note are one event."""

    def __init__(self, count, length, seed):
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(0, EVENTS, (count, 1), generator=generator)
        steps = torch.randint(1, 6, (count, length - 1), generator=generator)
        self.events = torch.cat([first, steps], 1).cumsum(1) % EVENTS

    def __len__(self):
        return len(self.events)

    def __getitem__(self, index):
        return {"input_ids": self.events[index], "labels": self.events[index]}


def hit(predictions, labels):
    return float(np.mean(predictions[:, :-1] == labels[:, 1:]))


def compute_metrics(evaluated):
    found = evaluated.predictions
    return {"hit": hit(found if MENDED else found.argmax(-1), evaluated.label_ids)}


def best(logits, labels):
    return logits.argmax(-1)


def main():
    torch.manual_seed(0)
    length, dim = 48, draw("dim", 64, 80)
    config = GPT2Config(
        vocab_size=EVENTS, n_positions=length, n_embd=dim, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir="melodies",
        max_steps=300,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        learning_rate=1e-3,
        warmup_steps=20,
        logging_steps=50,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Melodies(4000, length, 1),
        eval_dataset=Melodies(160, length, 2),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=best if MENDED else None,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
