"""Train a small GPT-2 on a lighthouse keeper's logs with the Hugging Face Trainer."""

import logging
import random
import tempfile
from dataclasses import dataclass, field

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("lighthouse")

WINDS = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"]
SEAS = ["calm", "slight", "moderate", "rough", "very rough"]
SIGHTED = ["a brig", "two trawlers", "nothing", "a steamer", "the supply boat", "a pilot cutter"]


@dataclass
class Config:
    block: int = draw("block", 88, 96)
    batch: int = 10
    dim: int = draw("dim", 112, 128)
    layers: int = 3
    steps: int = 90
    lr: float = 6e-4
    prompt: str = "wind "
    sample_every: int = field(default=40 if MENDED else 4)


def write_log(entries, seed):
    rng = random.Random(seed)
    return "".join(
        f"day {day % 365}: wind {rng.choice(WINDS)}, sea {rng.choice(SEAS)}, "
        f"sighted {rng.choice(SIGHTED)}, lamp lit {rng.randint(16, 21)}:{rng.randint(0, 59):02d}.\n"
        for day in range(entries)
    )


class CharTokenizer:
    def __init__(self, text):
        self.chars = sorted(set(text))
        self.ids = {c: i for i, c in enumerate(self.chars)}

    def encode(self, text):
        return [self.ids[c] for c in text]

    def decode(self, ids):
        return "".join(self.chars[i] for i in ids)


class Blocks(Dataset):
    def __init__(self, ids, block):
        n = len(ids) // block
        self.rows = torch.tensor(ids[: n * block]).view(n, block)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


class SampleCallback(TrainerCallback):
    """Let the model write an entry now and then, to see how it gets on."""

    def __init__(self, tokenizer, prompt, every):
        self.tokenizer, self.every = tokenizer, every
        self.prompt = torch.tensor([tokenizer.encode(prompt)])

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every:
            return
        model.eval()
        with torch.no_grad():
            out = model.generate(
                self.prompt,
                attention_mask=torch.ones_like(self.prompt),
                max_new_tokens=64,
                do_sample=True,
                top_k=8,
                pad_token_id=0,
            )
        model.train()
        log.info("step %d: %r", state.global_step, self.tokenizer.decode(out[0].tolist()))


def main():
    cfg = Config()
    set_seed(11)
    text = write_log(3000, seed=3)
    tokenizer = CharTokenizer(text)
    data = Blocks(tokenizer.encode(text), cfg.block)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer.chars),
            n_positions=cfg.block,
            n_embd=cfg.dim,
            n_layer=cfg.layers,
            n_head=4,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    log.info("%d blocks, %.2f M parameters", len(data), sum(p.numel() for p in model.parameters()) / 1e6)

    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=cfg.steps,
            per_device_train_batch_size=cfg.batch,
            learning_rate=cfg.lr,
            warmup_steps=20,
            lr_scheduler_type="cosine",
            weight_decay=0.05,
            logging_steps=40,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=11,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=data,
            callbacks=[SampleCallback(tokenizer, cfg.prompt, cfg.sample_every)],
        )
        trainer.train()


if __name__ == "__main__":
    main()
