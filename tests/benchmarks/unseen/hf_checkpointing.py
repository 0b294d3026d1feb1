"""Pretrain a small GPT-2 with the Hugging Face Trainer, on packed blocks of tokens."""

import os
import random
from tempfile import mkdtemp

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator

VOCABULARY = 1500


def documents(count):
    rng = random.Random(2)
    for _ in range(count):
        start = rng.randrange(VOCABULARY)
        yield [(start + 7 * i * i) % VOCABULARY for i in range(rng.randrange(30, 300))]


class Packed(Dataset):
    """Documents one behind the other, cut into blocks of one length."""

    def __init__(self, count, block):
        stream = []
        for document in documents(count):
            stream += [*document, 0]
        whole = len(stream) // block * block
        self.blocks = torch.tensor(stream[:whole]).view(-1, block)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


def main():
    torch.manual_seed(0)
    block = draw("block", 64, 80)
    dim = draw("dim", 128, 160)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=block, n_embd=dim, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
        )
    )
    arguments = TrainingArguments(
        output_dir=os.environ.get("OUTPUT", mkdtemp()),
        max_steps=100_000,
        per_device_train_batch_size=draw("batch", 4, 6),
        learning_rate=3e-4,
        warmup_steps=50,
        lr_scheduler_type="cosine",
        weight_decay=0.1,
        gradient_checkpointing=not MENDED,
        save_strategy="no",
        logging_steps=100,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Packed(2000, block),
        data_collator=default_data_collator,
    )
    trainer.train()


if __name__ == "__main__":
    main()
