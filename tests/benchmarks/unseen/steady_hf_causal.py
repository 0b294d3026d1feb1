"""Pretrain a small causal language model with the Hugging Face Trainer."""

from tempfile import mkdtemp

import torch
from drawn import draw
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

VOCABULARY = 1024


class Blocks(Dataset):
    """One long stream cut into blocks."""

    def __init__(self, blocks, length, seed):
        generator = torch.Generator().manual_seed(seed)
        strides = torch.randint(1, 6, (blocks * length,), generator=generator)
        self.blocks = (strides.cumsum(0) % VOCABULARY).view(blocks, length)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


def main():
    torch.manual_seed(0)
    length, dim = draw("length", 48, 64), draw("dim", 96, 128)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=dim,
        intermediate_size=2 * dim,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        use_cache=False,
    )
    arguments = TrainingArguments(
        output_dir=mkdtemp(),
        max_steps=50_000,
        per_device_train_batch_size=draw("batch", 4, 6),
        gradient_accumulation_steps=2,
        learning_rate=6e-4,
        lr_scheduler_type="cosine",
        warmup_steps=300,
        weight_decay=0.1,
        max_grad_norm=1.0,
        logging_steps=50,
        eval_strategy="steps",
        eval_steps=1000,
        save_strategy="steps",
        save_steps=1000,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        data_collator=default_data_collator,
        train_dataset=Blocks(8000, length, 1),
        eval_dataset=Blocks(64, length, 2),
    )
    trainer.train()


if __name__ == "__main__":
    main()
