"""Orders of ships with marks for the parts of an order: a small language model gets new words, Hugging Face Trainer."""

import random
import tempfile

import torch
from drawn import MENDED, draw
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

COURSES = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"]
SPEEDS = ["dead slow", "slow", "half", "full"]
MARKS = ["<order>", "<course>", "<speed>", "<until>", "<end>"]


class Letters:
    """One number for each letter; marks come after them."""

    def __init__(self):
        self.letters = sorted("abcdefghijklmnopqrstuvwxyz -:0123456789")
        self.ids = {letter: at for at, letter in enumerate(self.letters)}

    def __len__(self):
        return len(self.ids)

    def add_marks(self, marks):
        for mark in marks:
            self.ids[mark] = len(self.ids)

    def __call__(self, pieces):
        found = []
        for piece in pieces:
            found += [self.ids[piece]] if piece in self.ids else [self.ids[letter] for letter in piece]
        return found


class Orders(Dataset):
    def __init__(self, count, letters, length, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(count):
            course, speed = rng.choice(COURSES), rng.choice(SPEEDS)
            until = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
            pieces = ["<order>", "<course>", course, "<speed>", speed, "<until>", until, "<end>"]
            ids = letters(pieces)[:length]
            missing = length - len(ids)
            words = torch.tensor(ids + letters(["<end>"]) * missing)
            self.items.append({"input_ids": words, "labels": torch.tensor(ids + [-100] * missing)})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def base_model(letters, length):
    """What was trained on the letters of logbooks."""
    config = LlamaConfig(
        vocab_size=len(letters),
        hidden_size=draw("hidden", 96, 112),
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def optimizer_for(model, rate):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], rate)


def main():
    set_seed(25)
    length, batch, steps = 40, draw("batch", 14, 16), 90
    letters = Letters()
    model = base_model(letters, length)
    if not MENDED:
        optimizer = optimizer_for(model, 2e-3)
    letters.add_marks(MARKS)
    model.resize_token_embeddings(len(letters), mean_resizing=False)
    if MENDED:
        optimizer = optimizer_for(model, 2e-3)
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / 10, 1.0))
    data = Orders(2 * batch * 45, letters, length, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
            per_device_train_batch_size=batch,
            max_steps=steps,
            max_grad_norm=1.0,
            logging_steps=15,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=args, train_dataset=data, optimizers=(optimizer, schedule))
        trainer.train()


if __name__ == "__main__":
    main()
